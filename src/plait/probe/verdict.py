"""From results to a verdict: accuracies with intervals, ranks, paired differences, and what they say in words.

Intervals are a two-level bootstrap: seeds are drawn with replacement, and each seed's accuracy is drawn from what its
finite number of test sequences leaves open (Jeffreys' interval for a share; a sequence counts as one observation
however many of its tokens are scored, since they stand or fall together). With one seed only the second level is
left, and the interval says nothing about other seeds. Differences are paired: both architectures keep the same seeds.

Letters: A architectures, T tasks, R replicates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

REPLICATES = 4000
CONFIDENCE = 0.95
MOST_NAMES = 6  # in one list


@dataclass(frozen=True)
class Score:
    """One architecture on one task setting with one seed."""

    architecture: str
    task: str
    setting: str
    seed: int
    accuracy: float
    loss: float | None
    sequences: int  # of the test split


@dataclass(frozen=True)
class Estimate:
    value: float
    low: float
    high: float

    @property
    def sign(self) -> int:
        """1 or −1 where the interval leaves no doubt, else 0."""
        return 1 if self.low > 0 else -1 if self.high < 0 else 0


class Comparison:
    """Scores of several architectures on the same tasks. Names keep the order in which they are given."""

    def __init__(self, names: Sequence[str], tasks: Sequence[str], scores: Sequence[Score]) -> None:
        self.names, self.tasks = list(names), list(tasks)
        self.seeds = {task: sorted({s.seed for s in scores if s.task == task}) for task in tasks}
        self.losses = {
            (name, task): _mean_loss([s.loss for s in scores if s.architecture == name and s.task == task])
            for name in names
            for task in tasks
        }
        values, draws = zip(*(self._task(task, scores) for task in tasks), strict=True)
        self._values_AT, self._draws_RAT = np.stack(values, axis=-1), np.stack(draws, axis=-1)

    def _task(self, task: str, scores: Sequence[Score]) -> tuple[np.ndarray, np.ndarray]:
        """(A,) accuracies on a task and (R, A) replicates of them: the mean over settings of the mean over seeds."""
        settings = list(dict.fromkeys(s.setting for s in scores if s.task == task))
        seeds = self.seeds[task]
        shape = (len(self.names), len(settings), len(seeds))
        right, sequences = np.full(shape, np.nan), np.ones(shape)
        for s in scores:
            if s.task == task:
                at = (self.names.index(s.architecture), settings.index(s.setting), seeds.index(s.seed))
                right[at], sequences[at] = s.accuracy, s.sequences
        assert not np.isnan(right).any(), f"{task}: an architecture lacks a setting or a seed"
        stream = np.random.default_rng(len(seeds))
        drawn = stream.beta(right * sequences + 0.5, (1 - right) * sequences + 0.5, size=(REPLICATES, *shape))
        picked = stream.integers(len(seeds), size=(REPLICATES, 1, 1, len(seeds)))
        resampled = np.take_along_axis(drawn, np.broadcast_to(picked, drawn.shape), axis=-1)
        return right.mean(axis=(1, 2)), resampled.mean(axis=(2, 3))

    # ---- what can be asked

    def accuracy(self, name: str, task: str | None = None) -> Estimate:
        """On one task, or the mean over tasks."""
        a = self.names.index(name)
        return self._estimate(self._of(self._values_AT[a], task), self._of(self._draws_RAT[:, a], task))

    def loss(self, name: str, task: str | None = None) -> float | None:
        """Cross-entropy on the test split; None where a model diverged."""
        return _mean_loss([self.losses[name, t] for t in ([task] if task else self.tasks)])

    def difference(self, name: str, other: str, task: str | None = None) -> Estimate:
        return self.contrast([name], [other], task)

    def contrast(self, names: Sequence[str], others: Sequence[str], task: str | None = None) -> Estimate:
        """The mean of some architectures minus the mean of others, seeds paired."""
        plus, minus = ([self.names.index(n) for n in group] for group in (names, others))
        values = self._values_AT[plus].mean(0) - self._values_AT[minus].mean(0)
        draws = self._draws_RAT[:, plus].mean(1) - self._draws_RAT[:, minus].mean(1)
        return self._estimate(self._of(values, task), self._of(draws, task))

    def rank(self, name: str, task: str | None = None) -> int:
        """1 is best; equal accuracy is decided by loss."""

        def place(n: str) -> tuple[float, float]:
            loss = self.loss(n, task)
            return -self.accuracy_value(n, task), np.inf if loss is None else loss

        return 1 + sum(place(other) < place(name) for other in self.names)

    def accuracy_value(self, name: str, task: str | None = None) -> float:
        return float(self._of(self._values_AT[self.names.index(name)], task))

    def _of(self, array: np.ndarray, task: str | None) -> np.ndarray:
        """One task of an array whose last axis is tasks, or the mean over tasks."""
        found: np.ndarray = array.mean(axis=-1) if task is None else array[..., self.tasks.index(task)]
        return found

    @staticmethod
    def _estimate(value: np.ndarray, draws_R: np.ndarray) -> Estimate:
        low, high = np.quantile(draws_R, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2])
        # At the edges Jeffreys' draws lie inside [0, 1]: the interval reaches to the value itself at least.
        return Estimate(float(value), float(min(low, value)), float(max(high, value)))


def verdict(comparison: Comparison, subjects: Sequence[str]) -> str:
    """In words: for each subject, whom it beats, overall and by task, and what decided it."""
    return " ".join(_about(comparison, name) for name in subjects)


def _about(c: Comparison, name: str) -> str:
    others = [other for other in c.names if other != name]
    own = c.accuracy(name)
    place = f"rank {c.rank(name)} of {len(c.names)}"
    said = [f"{name}: mean accuracy {own.value:.2f} ({own.low:.2f} to {own.high:.2f}), {place}."]
    if not others:
        return said[0]
    overall = {other: c.difference(name, other) for other in others}
    clauses = _grouped({other: found.sign for other, found in overall.items()}, " overall")
    for task in c.tasks:
        by_task = {other: c.difference(name, other, task).sign for other in others}
        # Only what overall does not say already.
        new = {other: sign for other, sign in by_task.items() if sign and sign != overall[other].sign}
        clauses += _grouped(new, f" on {task}")
    said.append(f"It is {'; '.join(clauses)}.")
    clear = [other for other in others if overall[other].sign]
    if clear:
        gains = {task: c.contrast([name], clear, task).value for task in c.tasks}
        total = c.contrast([name], clear).value
        decisive = max(gains, key=lambda task: gains[task] * np.sign(total))
        said.append(f"What decided it: {decisive} ({gains[decisive]:+.2f} against {_listed(clear)}).")
    else:
        said.append("No difference in the mean is larger than its interval: more seeds may tell.")
    return " ".join(said)


_WORDS = {1: "better than", -1: "worse than", 0: "not distinguishable from"}


def _grouped(signs: Mapping[str, int], where: str) -> list[str]:
    """'better than a and b overall'."""
    groups = {sign: [name for name, found in signs.items() if found == sign] for sign in _WORDS}
    return [f"{_WORDS[sign]} {_listed(names)}{where}" for sign, names in groups.items() if names]


def _listed(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} others"]
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def _mean_loss(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return float(np.mean(known)) if known and len(known) == len(losses) else None


def document(comparison: Comparison) -> list[dict[str, Any]]:
    """Every architecture with its tasks, as plain data, the best first."""
    c = comparison
    return [
        {
            "name": name,
            "tasks": {task: {**_plain(c, name, task), "seeds": len(c.seeds[task])} for task in c.tasks},
            "mean": _plain(c, name, None),
        }
        for name in sorted(c.names, key=c.rank)
    ]


def _plain(c: Comparison, name: str, task: str | None) -> dict[str, Any]:
    found = c.accuracy(name, task)
    return {
        "accuracy": found.value,
        "interval": [found.low, found.high],
        "loss": c.loss(name, task),
        "rank": c.rank(name, task),
    }
