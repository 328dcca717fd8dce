"""From scores to a verdict: accuracies with intervals, ranks, paired differences, and a few sentences about them.

For one seed, an architecture's accuracy on a task is its mean over the task's settings, and its overall accuracy the
mean over tasks. Intervals are Student's t over seeds. Differences are paired by seed, since both architectures learn
from the same data. Seeds that are missing on some task contribute to the overall mean, but not to its interval. With
one seed there is no interval and no verdict.

A verdict compares one architecture with all others, overall and on every task. Holm's correction over all these
comparisons keeps the probability of any false statement at 5 %, half of it for the overall statements and half for
those about tasks. If the architecture was selected by these same results (the best of many), all pairs count as
comparisons. What is better on every task is better overall: that follows from the statements about tasks and needs no
test of its own, which is weaker where few seeds have all tasks.

`findings` and `by_task` check what the MAD paper reports (Sec. 3.4): its findings 1 to 3 as paired differences over the
21 architectures, and the best architecture for each task.

Letters: A architectures, S seeds.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypedDict

import numpy as np

from plait.analysis.distributions import CONFIDENCE
from plait.analysis.intervals import Estimate, Share, estimate, holm
from plait.model.architecture import Architecture

MOST_NAMES = 6  # in one list
#: An architecture, another, and the task on which they are compared (None: overall).
Pair = tuple[str, str, "str | None"]


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
    """Where one architecture is significantly better (1) or worse (−1) than others; 0 where it is neither."""

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
        self._sequences: dict[str, int] = {}  # by task, over all its settings and seeds
        for task in tasks:
            self._add(task, scores)
        shared = set.intersection(*(set(seeds) for seeds in self.seeds.values()))
        self.shared_seeds = sorted(shared)  # seeds that all tasks have

    def _add(self, task: str, scores: Sequence[Score]) -> None:
        settings = list(dict.fromkeys(s.setting for s in scores if s.task == task))
        seeds = self.seeds[task]
        right = np.full((len(self.names), len(settings), len(seeds)), np.nan)
        for s in scores:
            if s.task == task:
                right[self.names.index(s.architecture), settings.index(s.setting), seeds.index(s.seed)] = s.accuracy
        assert not np.isnan(right).any(), f"{task}: an architecture lacks a setting or a seed"
        self._accuracy_AS[task] = right.mean(axis=1)
        # A sequence counts as one observation, however many of its tokens are scored, because they are correlated.
        self._sequences[task] = sum(s.sequences for s in scores if s.task == task and s.architecture == self.names[0])

    # ---- estimates

    def accuracy(self, name: str, task: str | None = None) -> Estimate:
        """On one task, or the mean over tasks."""
        mean = self.contrast([name], [], task)
        if mean.low is None or mean.high is None:
            return mean
        return replace(mean, low=max(0.0, mean.low), high=min(1.0, mean.high))

    def loss(self, name: str, task: str | None = None) -> float | None:
        """Cross-entropy on the test split; None where a model diverged."""
        return _mean_loss([self.losses[name, t] for t in ([task] if task else self.tasks)])

    def difference(self, name: str, other: str, task: str | None = None) -> Estimate:
        return self.contrast([name], [other], task)

    def contrast(self, names: Sequence[str], others: Sequence[str], task: str | None = None) -> Estimate:
        """The mean of some architectures minus the mean of others (0 if there are none), paired by seed."""
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
        """The standard deviation between seeds; None with one seed."""
        tasks = [task] if task else self.tasks
        values_S = np.mean([self._at_shared_seeds(t, tasks)[self.names.index(name)] for t in tasks], axis=0)
        return float(values_S.std(ddof=1)) if len(values_S) > 1 else None

    def noise(self, task: str | None = None) -> float | None:
        """The same, pooled over all architectures: the root of their mean variance."""
        deviations = [self.deviation(name, task) for name in self.names]
        known = [deviation for deviation in deviations if deviation is not None]
        return float(np.sqrt(np.mean(np.square(known)))) if known else None

    def signs(self, name: str, *, chosen: bool = False) -> Signs:
        """Which architectures `name` differs from significantly. `chosen`: it was selected by these results, so all
        pairs count."""
        others = [other for other in self.names if other != name]
        pairs = list(itertools.combinations(self.names, 2)) if chosen else [(name, other) for other in others]
        level = (1 - CONFIDENCE) / (2 if len(self.tasks) > 1 else 1)
        signs = self._significant([(*pair, None) for pair in pairs], level)
        signs |= self._significant([(*pair, task) for task in self.tasks for pair in pairs], level)
        by_task = {task: {other: _sign(signs, name, other, task) for other in others} for task in self.tasks}
        overall = {other: _sign(signs, name, other, None) for other in others}
        for other in others:
            if len(same := {by_task[task][other] for task in self.tasks}) == 1:  # on every task, so also on average
                overall[other] = overall[other] or same.pop()
        return Signs(overall, by_task)

    def _significant(self, pairs: Sequence[Pair], level: float) -> dict[Pair, int]:
        """The sign of each difference that is significant after Holm's correction over all of them and larger than the
        standard deviation between seeds; 0 for the others."""
        differences = [self.difference(*pair) for pair in pairs]
        significant = holm([difference.p for difference in differences], level)
        floor = {task: self.noise(task) or 0.0 for _, _, task in pairs}
        return {
            pair: int(np.sign(difference.value)) if sure and abs(difference.value) >= floor[pair[2]] else 0
            for pair, difference, sure in zip(pairs, differences, significant, strict=True)
        }

    def rank(self, name: str, task: str | None = None) -> int:
        """1 is best; ties in accuracy are broken by loss."""

        def place(n: str) -> tuple[float, float]:
            loss = self.loss(n, task)
            return -self.accuracy_value(n, task), np.inf if loss is None else loss

        return 1 + sum(place(other) < place(name) for other in self.names)

    def loss_rank(self, name: str, task: str | None = None) -> int:
        """1 has the lowest loss; diverged models are last (the paper's other ranking, Fig. B.1)."""
        losses = {n: self.loss(n, task) for n in self.names}
        places = {n: np.inf if loss is None else loss for n, loss in losses.items()}
        return 1 + sum(places[other] < places[name] for other in self.names)

    def accuracy_value(self, name: str, task: str | None = None) -> float:
        a = self.names.index(name)
        return float(np.mean([self._accuracy_AS[t][a].mean() for t in ([task] if task else self.tasks)]))


def _sign(signs: Mapping[Pair, int], name: str, other: str, task: str | None) -> int:
    """The sign of the difference between two, for either order of the pair."""
    return signs[name, other, task] if (name, other, task) in signs else -signs[other, name, task]


def verdict(comparison: Comparison, subjects: Sequence[str], *, chosen: bool = False) -> str:
    """For each subject, in sentences: which architectures it beats, overall and by task, and which task was decisive.
    `chosen`: the subjects were selected by these results."""
    return " ".join(_sentences(comparison, name, chosen) for name in subjects)


def _sentences(c: Comparison, name: str, chosen: bool) -> str:
    others = [other for other in c.names if other != name]
    own = c.accuracy(name)
    place = f"rank {c.rank(name)} of {len(c.names)}"
    spread = "" if own.interval is None else " ({:.2f} to {:.2f})".format(*own.interval)
    sentences = [f"{name}: mean accuracy {own.value:.2f}{spread}, {place}."]
    one_seed = [task for task in c.tasks if len(c.seeds[task]) < 2]
    if len(one_seed) == len(c.tasks):
        sentences.append("One seed: no verdict. It cannot separate differences from noise; give at least 3 seeds.")
    if not others or len(one_seed) == len(c.tasks):
        return " ".join(sentences)
    signs = c.signs(name, chosen=chosen)
    known = len(c.shared_seeds) > 1
    clauses = _grouped(signs.overall, " overall") if known else []
    for task in c.tasks:
        # Only what the overall comparison does not already imply.
        new = {o: sign for o, sign in signs.by_task[task].items() if sign and not (known and sign == signs.overall[o])}
        clauses += _grouped(new, f" on {task}")
    if clauses:
        sentences.append(f"It is {'; '.join(clauses)}.")
    clear = [other for other in others if signs.overall[other]]
    if not known:
        sentences.append(f"One seed on {_listed(one_seed)}: no verdict overall.")
    elif clear:
        gains = {task: c.contrast([name], clear, task).value for task in c.tasks}
        total = c.contrast([name], clear).value
        decisive = max(gains, key=lambda task: gains[task] * np.sign(total))
        sentences.append(f"What decided it: {decisive} ({gains[decisive]:+.2f} against {_listed(clear)}).")
    else:
        on_a_task = any(sign for by_other in signs.by_task.values() for sign in by_other.values())
        why = " the other tasks hide what one task shows;" if on_a_task else ""
        sentences.append(
            f"No difference in the mean is significant, all comparisons considered:{why} more seeds may show one."
        )
    return " ".join(sentences)


_WORDS = {1: "better than", -1: "worse than", 0: "not distinguishable from"}


def _grouped(signs: Mapping[str, int], where: str) -> list[str]:
    """'better than a and b overall'."""
    groups = {sign: [name for name, own_sign in signs.items() if own_sign == sign] for sign in _WORDS}
    return [f"{_WORDS[sign]} {_listed(names)}{where}" for sign, names in groups.items() if names]


def _listed(names: Sequence[str]) -> str:
    if len(names) > MOST_NAMES:
        names = [*names[: MOST_NAMES - 1], f"{len(names) - MOST_NAMES + 1} others"]
    return ", ".join(names[:-1]) + (" and " if len(names) > 1 else "") + names[-1]


def _mean_loss(losses: Sequence[float | None]) -> float | None:
    known = [loss for loss in losses if loss is not None]
    return float(np.mean(known)) if known and len(known) == len(losses) else None


@dataclass(frozen=True)
class Summary:
    """One architecture over all seeds, on one task or over all of them."""

    accuracy: float
    interval: tuple[float, float] | None  # 95 %; None with one seed
    std: float | None  # between seeds
    loss: float | None
    rank: int
    loss_rank: int


def summary(c: Comparison, name: str, task: str | None = None) -> Summary:
    accuracy = c.accuracy(name, task)
    return Summary(
        accuracy.value,
        accuracy.interval,
        c.deviation(name, task),
        c.loss(name, task),
        c.rank(name, task),
        c.loss_rank(name, task),
    )


class SummaryRow(TypedDict):
    """A `Summary` as plain data."""

    accuracy: float
    interval: list[float] | None
    std: float | None
    loss: float | None
    rank: int
    loss_rank: int


class TaskRow(SummaryRow):
    seeds: int


class ProbedRow(TypedDict):
    name: str
    tasks: dict[str, TaskRow]
    mean: SummaryRow


def document(c: Comparison) -> list[ProbedRow]:
    """Every architecture with its tasks, as plain data, the best first."""
    return [
        {
            "name": name,
            "tasks": {task: {**_plain(summary(c, name, task)), "seeds": len(c.seeds[task])} for task in c.tasks},
            "mean": _plain(summary(c, name)),
        }
        for name in sorted(c.names, key=c.rank)
    ]


def _plain(figures: Summary) -> SummaryRow:
    return {
        "accuracy": figures.accuracy,
        "interval": None if figures.interval is None else list(figures.interval),
        "std": figures.std,
        "loss": figures.loss,
        "rank": figures.rank,
        "loss_rank": figures.loss_rank,
    }


@dataclass(frozen=True)
class Finding:
    """A finding of MAD's (arXiv:2403.17844, section 4) on these architectures."""

    finding: str
    difference: float  # in mean accuracy
    interval: tuple[float, float] | None
    paper: float  # the paper's own figure


def findings(comparison: Comparison) -> list[Finding]:
    names = comparison.names
    striped = [name for name in names if "-striped-" in name]
    plain = [name for name in names if name not in striped]
    heads = [(name, name.replace("mh-hyena", "hyena")) for name in names if "mh-hyena" in name]
    experts = [(name, name.replace("-moe", "-swiglu")) for name in names if name.endswith("-moe")]
    groups = {
        "striped architectures against all others": (striped, plain, 0.081),
        "heads against none (mh-hyena, hyena)": (*_sides(heads), 0.023),
        "sparse experts against SwiGLU": (*_sides(experts), 0.017),
    }
    results = []
    for sentence, (ours, theirs, paper) in groups.items():
        difference = comparison.contrast(ours, theirs)
        results.append(Finding(sentence, difference.value, difference.interval, paper))
    return results


@dataclass(frozen=True)
class BestAtTask:
    task: str
    best: str
    best_by_loss: str
    best_mixer: str
    mixers: dict[str, float]  # mean accuracy of the architectures that contain it


def by_task(comparison: Comparison, architectures: Mapping[str, Architecture]) -> list[BestAtTask]:
    """For every task the best architecture by accuracy and by loss, and the mean accuracy of every sequence mixer over
    the architectures that contain it."""
    c = comparison
    holding: dict[str, list[str]] = {}
    for name in c.names:
        for mixer in dict.fromkeys(o.name for o in architectures[name].layers if o.kind == "sequence"):
            holding.setdefault(mixer, []).append(name)
    rows = []
    for task in c.tasks:
        mixers = {
            mixer: float(np.mean([c.accuracy_value(name, task) for name in names])) for mixer, names in holding.items()
        }
        rows.append(
            BestAtTask(
                task,
                best=min((c.rank(name, task), name) for name in c.names)[1],
                best_by_loss=min((c.loss_rank(name, task), name) for name in c.names)[1],
                best_mixer=max((accuracy, mixer) for mixer, accuracy in mixers.items())[1],
                mixers=mixers,
            )
        )
    return rows


def _sides(pairs: list[tuple[str, str]]) -> tuple[list[str], list[str]]:
    return [first for first, _ in pairs], [second for _, second in pairs]
