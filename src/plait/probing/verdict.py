"""From results to a verdict: accuracies with intervals, ranks, paired differences, and what they say in words.

An architecture's accuracy on a task with one seed is its mean over the task's settings; on all tasks, the mean over
tasks. Intervals are Student's t over these values, differences paired by seed (both architectures learn from the same
data), so that they hold whatever the seeds' spread comes from. Seeds that not all tasks have count in the mean, but not
in its interval. With one seed there is no interval and no verdict.

A verdict compares one architecture with all others, overall and on every task. Holm's correction, over all others at
once, keeps the probability of any false statement at 5 %: half of it is for those overall, half for those by task.
Where the architecture was chosen by these very results, as the best of many is, all pairs are counted.

Letters: A architectures, T tasks, S seeds.

The paper's findings are checked, too: 1 to 3 (Sec. 3.4) from the 21 architectures as paired differences, and who is
best at which task (Sec. 3.4: Mamba at compression, Hyena at fuzzy recall).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from plait.analysis.intervals import CONFIDENCE, Estimate, Share, estimate, holm
from plait.model.architecture import Architecture

MOST_NAMES = 6  # in one list
Asked = tuple[str, str, "str | None"]  # an architecture, another, and a task (None: overall)


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
class Signs:
    """Where one architecture is better (1) or worse (−1) than others beyond doubt; 0 where that cannot be told."""

    overall: dict[str, int]
    by_task: dict[str, dict[str, int]]  # task → other → sign


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
        self._accuracy_AS: dict[str, np.ndarray] = {}  # by task
        self._sequences: dict[str, int] = {}  # of a task with all its settings and seeds
        for task in tasks:
            self._add(task, scores)
        shared = set.intersection(*(set(seeds) for seeds in self.seeds.values()))
        self.shared_seeds = sorted(shared)  # those that every task has

    def _add(self, task: str, scores: Sequence[Score]) -> None:
        settings = list(dict.fromkeys(s.setting for s in scores if s.task == task))
        seeds = self.seeds[task]
        right = np.full((len(self.names), len(settings), len(seeds)), np.nan)
        for s in scores:
            if s.task == task:
                right[self.names.index(s.architecture), settings.index(s.setting), seeds.index(s.seed)] = s.accuracy
        assert not np.isnan(right).any(), f"{task}: an architecture lacks a setting or a seed"
        self._accuracy_AS[task] = right.mean(axis=1)
        # A sequence counts as one observation however many of its tokens are scored: they stand or fall together.
        self._sequences[task] = sum(s.sequences for s in scores if s.task == task and s.architecture == self.names[0])

    # ---- what can be asked

    def accuracy(self, name: str, task: str | None = None) -> Estimate:
        """On one task, or the mean over tasks."""
        found = self.contrast([name], [], task)
        if found.low is None or found.high is None:
            return found
        return replace(found, low=max(0.0, found.low), high=min(1.0, found.high))

    def loss(self, name: str, task: str | None = None) -> float | None:
        """Cross-entropy on the test split; None where a model diverged."""
        return _mean_loss([self.losses[name, t] for t in ([task] if task else self.tasks)])

    def difference(self, name: str, other: str, task: str | None = None) -> Estimate:
        return self.contrast([name], [other], task)

    def contrast(self, names: Sequence[str], others: Sequence[str], task: str | None = None) -> Estimate:
        """The mean of some architectures minus the mean of others (of none: 0), seeds paired."""
        weight_A = np.zeros(len(self.names))
        for group, sign in ((names, 1.0), (others, -1.0)):
            for name in group:
                weight_A[self.names.index(name)] += sign / len(group)
        tasks = [task] if task else self.tasks
        value = float(np.mean([weight_A @ self._accuracy_AS[t].mean(axis=1) for t in tasks]))
        values_S = weight_A @ np.mean([self._at_shared_seeds(t, tasks) for t in tasks], axis=0)
        shares = [
            Share(float(self._accuracy_AS[t][a].mean()), self._sequences[t], float(weight_A[a]) / len(tasks))
            for t in tasks
            for a in np.flatnonzero(weight_A)
        ]
        return estimate(values_S, shares, value)

    def _at_shared_seeds(self, task: str, tasks: Sequence[str]) -> np.ndarray:
        """(A, S) accuracies on a task with the seeds that all of `tasks` have."""
        seeds = self.seeds[task] if len(tasks) == 1 else self.shared_seeds
        return self._accuracy_AS[task][:, [self.seeds[task].index(seed) for seed in seeds]]

    def deviation(self, name: str, task: str | None = None) -> float | None:
        """The standard deviation from seed to seed; None from one seed."""
        tasks = [task] if task else self.tasks
        values_S = np.mean([self._at_shared_seeds(t, tasks)[self.names.index(name)] for t in tasks], axis=0)
        return float(values_S.std(ddof=1)) if len(values_S) > 1 else None

    def noise(self, task: str | None = None) -> float | None:
        """The same of all architectures together: the root of their mean variance."""
        found = [self.deviation(name, task) for name in self.names]
        known = [one for one in found if one is not None]
        return float(np.sqrt(np.mean(np.square(known)))) if known else None

    def signs(self, name: str, *, chosen: bool = False) -> Signs:
        """Whom `name` differs from beyond doubt. `chosen`: it was picked by these results, so that all pairs count."""
        others = [other for other in self.names if other != name]
        pairs = list(itertools.combinations(self.names, 2)) if chosen else [(name, other) for other in others]
        level = (1 - CONFIDENCE) / (2 if len(self.tasks) > 1 else 1)
        told = self._told([(*pair, None) for pair in pairs], level)
        told |= self._told([(*pair, task) for task in self.tasks for pair in pairs], level)
        return Signs(
            {other: _between(told, name, other, None) for other in others},
            {task: {other: _between(told, name, other, task) for other in others} for task in self.tasks},
        )

    def _told(self, asked: Sequence[Asked], level: float) -> dict[Asked, int]:
        """The sign of each (name, other, task) that Holm's correction over all of them leaves; 0 below the noise."""
        found = [self.difference(*one) for one in asked]
        told = holm([one.p for one in found], level)
        floor = {task: self.noise(task) or 0.0 for task in {one[2] for one in asked}}
        return {
            one: int(np.sign(f.value)) if sure and abs(f.value) >= floor[one[2]] else 0
            for one, f, sure in zip(asked, found, told, strict=True)
        }

    def rank(self, name: str, task: str | None = None) -> int:
        """1 is best; equal accuracy is decided by loss."""

        def place(n: str) -> tuple[float, float]:
            loss = self.loss(n, task)
            return -self.accuracy_value(n, task), np.inf if loss is None else loss

        return 1 + sum(place(other) < place(name) for other in self.names)

    def loss_rank(self, name: str, task: str | None = None) -> int:
        """1 has the lowest loss; who diverged is last (the paper's other ranking, Fig. B.1)."""
        losses = {n: self.loss(n, task) for n in self.names}
        places = {n: np.inf if loss is None else loss for n, loss in losses.items()}
        return 1 + sum(places[other] < places[name] for other in self.names)

    def accuracy_value(self, name: str, task: str | None = None) -> float:
        a = self.names.index(name)
        return float(np.mean([self._accuracy_AS[t][a].mean() for t in ([task] if task else self.tasks)]))


def _between(told: Mapping[Asked, int], name: str, other: str, task: str | None) -> int:
    return told[name, other, task] if (name, other, task) in told else -told[other, name, task]


def verdict(comparison: Comparison, subjects: Sequence[str], *, chosen: bool = False) -> str:
    """In words: for each subject, whom it beats, overall and by task, and what decided it. `chosen`: subjects were
    picked by these results."""
    return " ".join(_about(comparison, name, chosen) for name in subjects)


def _about(c: Comparison, name: str, chosen: bool) -> str:
    others = [other for other in c.names if other != name]
    own = c.accuracy(name)
    place = f"rank {c.rank(name)} of {len(c.names)}"
    spread = "" if own.interval is None else " ({:.2f} to {:.2f})".format(*own.interval)
    said = [f"{name}: mean accuracy {own.value:.2f}{spread}, {place}."]
    once = [task for task in c.tasks if len(c.seeds[task]) < 2]
    if len(once) == len(c.tasks):
        said.append("One seed: no verdict. It cannot tell differences from luck; give 3 seeds or more.")
    if not others or len(once) == len(c.tasks):
        return " ".join(said)
    found = c.signs(name, chosen=chosen)
    known = len(c.shared_seeds) > 1
    clauses = _grouped(found.overall, " overall") if known else []
    for task in c.tasks:
        # Only what overall does not say already.
        new = {o: sign for o, sign in found.by_task[task].items() if sign and not (known and sign == found.overall[o])}
        clauses += _grouped(new, f" on {task}")
    if clauses:
        said.append(f"It is {'; '.join(clauses)}.")
    clear = [other for other in others if found.overall[other]]
    if not known:
        said.append(f"One seed on {_listed(once)}: no verdict overall.")
    elif clear:
        gains = {task: c.contrast([name], clear, task).value for task in c.tasks}
        total = c.contrast([name], clear).value
        decisive = max(gains, key=lambda task: gains[task] * np.sign(total))
        said.append(f"What decided it: {decisive} ({gains[decisive]:+.2f} against {_listed(clear)}).")
    else:
        said.append("No difference in the mean is certain, all comparisons considered: more seeds may tell.")
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
        "interval": None if found.interval is None else list(found.interval),
        "std": c.deviation(name, task),
        "loss": c.loss(name, task),
        "rank": c.rank(name, task),
        "loss_rank": c.loss_rank(name, task),
    }


def findings(comparison: Comparison) -> list[dict[str, Any]]:
    """Each finding: its sentence, the difference in mean accuracy with its interval, and the paper's figure."""
    names = comparison.names
    striped = [name for name in names if "-striped-" in name]
    plain = [name for name in names if name not in striped]
    heads = [(name, name.replace("mh-hyena", "hyena")) for name in names if "mh-hyena" in name]
    experts = [(name, name.replace("-moe", "-swiglu")) for name in names if name.endswith("-moe")]
    pairs = {
        "striped architectures against all others": (striped, plain, 0.081),
        "heads against none (mh-hyena, hyena)": (*_sides(heads), 0.023),
        "sparse experts against SwiGLU": (*_sides(experts), 0.017),
    }
    found = []
    for said, (ours, theirs, paper) in pairs.items():
        difference = comparison.contrast(ours, theirs)
        found.append(
            {
                "finding": said,
                "difference": difference.value,
                "interval": None if difference.interval is None else list(difference.interval),
                "paper": paper,
            }
        )
    return found


def by_task(comparison: Comparison, architectures: Mapping[str, Architecture]) -> list[dict[str, Any]]:
    """For every task the best architecture by accuracy and by loss, and the mean accuracy of every sequence mixer over
    the architectures that hold it."""
    c = comparison
    holding: dict[str, list[str]] = {}
    for name in c.names:
        for mixer in dict.fromkeys(o.name for o in architectures[name].layers if o.kind == "sequence"):
            holding.setdefault(mixer, []).append(name)
    found = []
    for task in c.tasks:
        mixers = {
            mixer: float(np.mean([c.accuracy_value(name, task) for name in names])) for mixer, names in holding.items()
        }
        found.append(
            {
                "task": task,
                "best": min((c.rank(name, task), name) for name in c.names)[1],
                "best_by_loss": min((c.loss_rank(name, task), name) for name in c.names)[1],
                "best_mixer": max((accuracy, mixer) for mixer, accuracy in mixers.items())[1],
                "mixers": mixers,
            }
        )
    return found


def _sides(pairs: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
