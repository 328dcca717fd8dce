"""The cross-validation folds of the backtest: sets of candidates, and the data that may be used for each.

Test data are never used for fitting, and are never in the library of curves. First: sets from one half of the
architectures, with constants fitted on the other half (all texts; two ways of halving) and a library, fitted again for
every set, of all architectures outside the set. Second: constants and library from the other texts (all architectures).
Third: constants from the other texts, and their library without the architectures of the set.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from curve_calibration import calibrate, learn_width
from screenings import SHARE, Screened

from plait.analysis.curve_library import Known, Library, library
from plait.analysis.curve_screening import ScreenedKnown, ScreenedLibrary
from plait.analysis.curve_table import CurveTable
from plait.analysis.forecast import count
from plait.analysis.learning_curve import Calibration, extrapolate
from plait.analysis.race_policy import Replayed, replay
from plait.analysis.rank import spearman
from plait.racing.screening import AT_MOST

Traits = dict[str, list[float]] | None
Progress = Callable[[str], None]
RESULTS = Path(__file__).parent / "results"
SCREENING = "screening"
NEAR = 0.3  # of the noise: a regret that does not matter
HALVINGS = 2  # of the architectures: the constants for each half are fitted on the other
INNER_SETS = 24  # left out of a library to fit the width of its forecasts
BINS = (0.0, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)


@dataclass(frozen=True)
class Asked:
    """One drawn set of candidates, with constants that know none of them."""

    table: CurveTable
    calibration: Calibration
    noise: float  # of the whole table, in nats
    seed: int
    known: Known | None
    screened: Known | None  # the same, with a screening of every candidate


class Backtest:
    """The folds: who is asked about, and what may be known then. `keep`: a file of constants fitted before."""

    def __init__(
        self,
        tables: Sequence[CurveTable],
        traits: Traits,
        sets: int,
        size: int,
        progress: Progress,
        keep: Path | None,
        draw: int = 0,
        screened: Screened | None = None,
    ) -> None:
        self.tables, self.traits, self.sets, self.size, self.draw = tables, traits, sets, size, draw
        self.progress, self.keep, self.screened = progress, keep, screened
        self.kept: dict[str, Any] = json.loads(keep.read_text()) if keep and keep.exists() else {}

    def constants(self, key: str, tables: Sequence[CurveTable]) -> Calibration:
        if key not in self.kept:
            self.kept[key] = asdict(calibrate(tables))
            self.progress(f"constants, {key}")
            if self.keep:
                self.keep.write_text(json.dumps(self.kept, indent=1))
        row = self.kept[key]
        return Calibration(**{**row, "alpha": tuple(row["alpha"]), "offset": tuple(row["offset"])})

    def by_architecture(self) -> list[Asked]:
        halves, rng = np.random.default_rng(0), np.random.default_rng([self.draw, 0])
        names = sorted(set.intersection(*(set(table.names) for table in self.tables)))
        asked: list[Asked] = []
        for halving in range(HALVINGS):
            for place, part in enumerate(np.array_split(halves.permutation(len(names)), 2)):
                out = {names[i] for i in part.tolist()}
                key = f"halving {halving}, without half {place}"
                calibration = self.constants(key, [without_names(table, out) for table in self.tables])
                sets = _share(self.sets, 2 * HALVINGS, 2 * halving + place)
                for table in self.tables:
                    for each, seed in self._drawn(without_names(table, set(names) - out), sets, rng):
                        known = self._known(self.tables, each, each.names, calibration)
                        screened = self._screened(self.tables, each, each.names, calibration, seed)
                        asked.append(Asked(each, calibration, table.noise, seed, known, screened))
        return asked

    def by_text(self, new: bool) -> list[Asked]:
        """`new`: the candidates are not in the library either."""
        rng = np.random.default_rng([self.draw, 1])
        asked: list[Asked] = []
        for table in self.tables:
            others = [other for other in self.tables if other is not table]
            calibration = self.constants(f"without {table.text}", others)
            for each, seed in self._drawn(table, self.sets, rng):
                without = each.names if new else []
                known = self._known(others, each, without, calibration)
                screened = self._screened(others, each, without, calibration, seed)
                asked.append(Asked(each, calibration, table.noise, seed, known, screened))
        return asked

    def _drawn(self, table: CurveTable, sets: int, rng: np.random.Generator) -> list[tuple[CurveTable, int]]:
        size = min(self.size, len(table.names))
        places = [sorted(rng.choice(len(table.names), size, replace=False).tolist()) for _ in range(sets)]
        return [(table.subset(each), int(rng.integers(2**31))) for each in places]

    def _known(
        self, tables: Sequence[CurveTable], asked: CurveTable, without: Sequence[str], calibration: Calibration
    ) -> Known | None:
        """A library of these texts; without the candidates, its width is fitted among the rest, as for plait's."""
        if self.traits is None:
            return None
        curves = library(tables, self.traits).without(without)
        curves = self._with_width(curves, tables, without, calibration)
        return Known(curves, self.traits, {name: name for name in asked.names}, asked.text)

    def _with_width(
        self, curves: Library, tables: Sequence[CurveTable], without: Sequence[str], calibration: Calibration
    ) -> Library:
        if not without or self.traits is None:
            return curves
        rest = [without_names(table, set(without)) for table in tables]
        return replace(curves, width=learn_width(rest, curves, self.traits, calibration, INNER_SETS))

    def _screened(
        self,
        tables: Sequence[CurveTable],
        asked: CurveTable,
        without: Sequence[str],
        calibration: Calibration,
        seed: int,
    ) -> Known | None:
        """The same library with its architectures' screenings, and one screening of every candidate."""
        if self.traits is None or self.screened is None:
            return None
        curves, steps = library(tables, self.traits), self.screened.known.steps[-1]
        whole = ScreenedLibrary.beside(curves, self.screened.of(list(tables), curves.names), steps)
        seen = self.screened.seen(asked, steps, seed // 7)
        rest = self._with_width(whole.without(without), tables, without, calibration)
        return ScreenedKnown(rest, self.traits, {name: name for name in asked.names}, asked.text, seen)


def without_names(table: CurveTable, names: set[str]) -> CurveTable:
    return table.subset([i for i, name in enumerate(table.names) if name not in names])


def _share(total: int, parts: int, part: int) -> int:
    return total * (part + 1) // parts - total * part // parts


def played(asked: Sequence[Asked], policy: str, way: str, limit: float, decay: float, batch: int = 1) -> list[Replayed]:
    """The way `SCREENING` is the library's, in a race that has paid for a screening of every candidate."""
    found = []
    for a in asked:
        screening = way == SCREENING
        known, paid, by = (a.screened, SHARE, "library") if screening else (a.known, 0.0, way)
        found.append(replay(a.table, policy, by, limit, a.calibration, a.seed, decay, batch, 800, a.noise, known, paid))
    return found


def affordable(way: str, limit: float) -> str:
    """As `racing.race` does: no screening where it would take most of the limit."""
    return "library" if way == SCREENING and AT_MOST * limit < SHARE else way


def summary(results: Sequence[Replayed]) -> dict[str, float]:
    return {
        "spearman": float(np.mean([r.spearman for r in results])),
        "regret": float(np.median([r.regret_share for r in results])),
        "mean_regret": float(np.mean([r.regret_share for r in results])),
        "near": float(np.mean([r.regret_noise <= NEAR for r in results])),
        "right": float(np.mean([r.pick == r.best for r in results])),
        "cost": float(np.mean([r.cost for r in results])),
        "held": float(np.mean([r.held for r in results])),
        "log_score": log_score([r.p_best for r in results]),
        "rounds": float(np.mean([r.rounds for r in results])),
    }


def log_score(forecasts: Sequence[Sequence[tuple[float, bool]]]) -> float:
    """Mean logarithm of the probability given to who was best, not below a thousandth; higher is better."""
    return float(np.mean([math.log(max(p, 1e-3)) for pairs in forecasts for p, best in pairs if best]))


def signals(
    tables: Sequence[CurveTable],
    asked: Sequence[Asked],
    counts: Mapping[str, Mapping[str, float]],
    better: Mapping[str, Mapping[str, float]],
) -> list[dict[str, Any]]:
    """What costs less than a race, or knows less: counts (fewer is better, and more is better), numbers that claim to
    be the better the more (`better`: proxies, probe tasks), one short training, and everybody trained to the end."""
    rows = []
    budgets = tables[0].budgets
    scores: dict[str, tuple[Callable[[CurveTable, int], Sequence[float]], float]] = {
        "chance": (lambda table, seed: np.random.default_rng(seed).random(len(table.names)).tolist(), 0.0)
    }
    for name, values in counts.items():
        scores[f"fewer {name}"] = (lambda table, seed, v=values: [v[n] for n in table.names], 0.0)
        scores[f"more {name}"] = (lambda table, seed, v=values: [-v[n] for n in table.names], 0.0)
    for name, values in better.items():
        scores[name] = (lambda table, seed, v=values: [-v[n] for n in table.names], 0.0)
    for place, budget in enumerate(budgets):
        scores[f"loss after {count(budget)} tokens"] = (
            lambda table, seed, place=place: table.loss_ASB[:, seed % table.loss_ASB.shape[1], place].tolist(),
            budget / budgets[-1],
        )
    for name, (score, cost) in scores.items():
        correlations, shares, near = [], [], []
        for a in asked:
            values = score(a.table, a.seed)
            correlations.append(spearman(values, a.table.truth))
            regret = float(a.table.truth[int(np.argmin(values))] - a.table.truth.min())
            shares.append(regret / float(a.table.truth.min()))
            near.append(regret / a.noise <= NEAR)
        rows.append(
            {"signal": name, "spearman": float(np.nanmean(correlations)), "regret": float(np.median(shares)),
             "mean_regret": float(np.mean(shares)), "near": float(np.mean(near)), "cost": cost}
        )  # fmt: skip
    return rows


def between_seeds(asked: Sequence[Asked]) -> dict[str, float]:
    """Everybody trained to the end once more: the last losses of one seed, judged by those of the others. A race's own
    seed is a part of the truth that it is judged by, which makes the last of the `signals` look better than any
    forecast can be."""
    correlations, near = [], []
    for a in asked:
        run = a.seed % a.table.loss_ASB.shape[1]
        one_A, others_A = a.table.loss_ASB[:, run, -1], np.delete(a.table.loss_ASB[:, :, -1], run, axis=1).mean(axis=1)
        correlations.append(spearman(one_A.tolist(), others_A))
        near.append(others_A[int(np.argmin(one_A))] - others_A.min() <= NEAR * a.noise)
    return {"spearman": float(np.mean(correlations)), "near": float(np.mean(near))}


def measured(names: Sequence[str]) -> dict[str, dict[str, float]]:
    """Proxies (`truth_proxies.py`) and accuracies on probe tasks (`probe_truth.py`), where they are known of all."""
    found: dict[str, dict[str, float]] = {}
    for path in sorted(RESULTS.glob("*truth-proxies.json")):
        scores = json.loads(path.read_text(encoding="utf-8"))["proxies"]
        for proxy in next(iter(scores.values())):
            if all(scores.get(name, {}).get(proxy) is not None for name in names):
                found[f"proxy {proxy}"] = {name: float(scores[name][proxy]) for name in names}
    for path in sorted(RESULTS.glob("*probe-truth.json")):
        accuracy: dict[str, dict[str, dict[int, float]]] = {}
        for row in json.loads(path.read_text(encoding="utf-8"))["architectures"]:
            for run in row["runs"]:  # the better of the rates, for every seed
                by_seed = accuracy.setdefault(run["task"], {}).setdefault(row["name"], {})
                by_seed[run["seed"]] = max(by_seed.get(run["seed"], 0.0), run["accuracy"])
        whole = {task: by_name for task, by_name in accuracy.items() if set(names) <= set(by_name)}
        means = {task: {n: float(np.mean(list(by[n].values()))) for n in names} for task, by in whole.items()}
        found |= {f"probe {task}": scores for task, scores in means.items()}
        if means:
            found["probe, mean of tasks"] = {n: float(np.mean([by[n] for by in means.values()])) for n in names}
    return found


def reliability(results: Sequence[Replayed]) -> list[dict[str, float]]:
    """`error`: of the share that was best, with winners drawn again: sets that one architecture wins come out alike, so
    that there are as many independent trials as winners (`winners`), not as sets."""
    rows, rng = [], np.random.default_rng(0)
    winners = sorted({r.best for r in results})
    for low, high in itertools.pairwise(BINS):
        held = {
            best: [
                pair
                for r in results
                if r.best == best
                for pair in r.p_best
                if low <= pair[0] < high or pair[0] == high == 1
            ]
            for best in winners
        }
        pairs = [pair for each in held.values() for pair in each]
        if pairs:
            said, was = (float(np.mean(column)) for column in zip(*pairs, strict=True))
            again = [
                [was for i in rng.integers(len(winners), size=len(winners)).tolist() for _, was in held[winners[i]]]
                for _ in range(300)
            ]
            error = float(np.std([np.mean(each) for each in again if each]))
            rows.append(
                {"low": low, "high": high, "forecasts": len(pairs), "said": said, "was": was, "error": error,
                 "winners": sum(bool(each) for each in held.values())}
            )  # fmt: skip
    return rows


def reach(asked: Sequence[Asked], way: str) -> list[dict[str, float]]:
    """All trained to 1/2, 1/4, … of the end: how good the forecast of the end is."""
    rows = []
    budgets = asked[0].table.budgets
    for count_ in range(len(budgets) - 1, 1, -1):
        correlations, held, widths, errors, near = [], [], [], [], []
        for a in asked:
            names, truths = a.table.names, a.table.truth.tolist()
            runs = a.table.loss_ASB.shape[1]
            seen = a.table.observations(dict.fromkeys(names, count_), [a.seed % runs])
            by, known = ("library", a.screened) if way == SCREENING else (way, a.known)
            at = extrapolate(seen, budgets[-1:], by, a.calibration, 800, a.seed, 1e9, known).at(budgets[-1])
            correlations.append(spearman([at.loss[name] for name in names], truths))
            near.append(truths[names.index(at.pick)] - min(truths) <= NEAR * a.noise)
            for name, truth in zip(names, truths, strict=True):
                low, high = at.interval(name, runs=runs)
                held.append(low <= truth <= high)
                widths.append(high / low - 1)
                errors.append(abs(at.loss[name] / truth - 1))
        rows.append(
            {"ratio": round(budgets[-1] / budgets[count_ - 1], 2), "budgets": count_,
             "cost": (0.8 + 0.4 * (1 - 2.0**-count_)) * budgets[count_ - 1] / budgets[-1],
             "spearman": float(np.mean(correlations)), "near": float(np.mean(near)), "held": float(np.mean(held)),
             "width": float(np.median(widths)), "error": float(np.median(errors))}
        )  # fmt: skip
    return rows


def seeds(table: CurveTable) -> list[dict[str, float]]:
    """The noise between seeds at every budget, and the part of its variance that is common to all architectures."""
    rows = []
    for b, budget in enumerate(table.budgets):
        log_AS = np.log(table.loss_ASB[:, :, b])
        apart_AS = log_AS - log_AS.mean(axis=1, keepdims=True)
        architectures, runs = apart_AS.shape
        within = float((apart_AS**2).sum()) / (architectures * (runs - 1))
        common = float((apart_AS.mean(axis=0) ** 2).sum()) / (runs - 1) - within / architectures
        spread = float(np.sqrt(log_AS.mean(axis=1).var(ddof=1)))
        rows.append({"tokens": budget, "noise": within**0.5, "common": max(0.0, common / within), "spread": spread})
    return rows
