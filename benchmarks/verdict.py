"""Is the verdict right? Races replayed on a truth table of complete learning curves, against every cheaper signal.

    python benchmarks/verdict.py [TRUTH.json] [--simulate] [--sets 200] [--size 8] [--limit 0.1] [--out FILE.md]
    python benchmarks/verdict.py --draw 97 --ways screening --policies knowledge-gradient       the default, other sets

The table (the newest `benchmarks/results/*truth*.json`; or simulated curves) holds losses of many architectures at many
budgets. Sets of candidates are drawn from it; in each, a race sees one seed and what it has paid for, and picks. Judged
by the mean over seeds at the last budget: Spearman's correlation of its forecast with the final ranking, regret, how
often the regret is at most 0.3 of the noise between seeds, the share of the cost of training all to the end, how often
90 % intervals hold the truth, and whether P(best) is what it says.

Nothing is ever judged by what it was fitted on, nor does a library of curves hold it. First: sets of one half of the
architectures, with constants fitted on the other half (both texts; two ways of halving) and a library, learnt again for
every set, of all that are not in the set. Second: constants and library of the other text (all architectures). Third:
constants of the other text, and its library without those in the set. Last, a text of which only some architectures
were trained and nobody screened (`--third`), with the library of all other texts, with and without those in the set.
FILE.json, beside the table, holds all numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from curve_calibration import calibrate, learn_width
from screenings import SHARE, Screened, read_screenings

from plait.analysis.curve_library import Known, Library, library
from plait.analysis.curve_screening import ScreenedKnown, ScreenedLibrary
from plait.analysis.curve_table import CurveTable, read_tables, simulate_table
from plait.analysis.foresight import count
from plait.analysis.learning_curve import CALIBRATION, WAYS, Calibration, extrapolate
from plait.analysis.race_policy import POLICIES
from plait.analysis.race_replay import Replayed, replay
from plait.analysis.rank import spearman
from plait.model.architecture import architecture
from plait.model.reference_curves import PATH as REFERENCE
from plait.model.reference_curves import library_document
from plait.model.traits import traits as traits_of
from plait.racing.screening import AT_MOST

Traits = dict[str, list[float]] | None
Progress = Callable[[str], None]
RESULTS = Path(__file__).parent / "results"
SCREENING = "screening"
SCREENINGS = ("2026-11-17-h200-proxy-training.json", "2026-11-17-h200-proxy-mixed.json", "2026-11-18-h200-copies.json")
NEAR = 0.3  # of the noise: a regret that does not matter
HALVINGS = 2  # of the architectures: the constants for each half are fitted on the other
INNER_SETS = 24  # left out of a library to fit the width of its forecasts,
WRITTEN_SETS = 400  # and of the one that comes with plait
OTHERS = 4  # what is not the default is judged by every so manyth set
LIMITS = (0.03, 0.05, 0.1, 0.2, 0.4)
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
                calibration = self.constants(key, [_without(table, out) for table in self.tables])
                sets = _share(self.sets, 2 * HALVINGS, 2 * halving + place)
                for table in self.tables:
                    for each, seed in self._drawn(_without(table, set(names) - out), sets, rng):
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
        return Known(curves, self.traits, {name: name for name in asked.names})

    def _with_width(
        self, curves: Library, tables: Sequence[CurveTable], without: Sequence[str], calibration: Calibration
    ) -> Library:
        if not without or self.traits is None:
            return curves
        rest = [_without(table, set(without)) for table in tables]
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
        return ScreenedKnown(rest, self.traits, {name: name for name in asked.names}, seen)


def _without(table: CurveTable, names: set[str]) -> CurveTable:
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


def page(found: Mapping[str, Any]) -> str:
    def percent(x: float, digits: int = 1) -> str:
        return f"{100 * x:.{digits}f}"

    lines = [
        "# Is the verdict right? Races replayed on complete learning curves",
        "",
        f"`python benchmarks/verdict.py`, {found['date']}, table {found['table']}: "
        + ", ".join(f"{text} ({n} architectures)" for text, n in found["texts"].items())
        + f", {found['sets']} sets of {found['size']} candidates per text (draw {found['draw']}; every "
        f"{OTHERS}th for ways other than library and {found['default'][0]}), at most {percent(found['limit'], 0)} % of "
        "the cost of training all to the end (branches of "
        f"{percent(found['decay'], 0)} % of each budget counted), one seed each; {found['seconds']:.0f} s.",
        "",
        f"Regret: the pick's loss above the best one's. Near: regret at most {NEAR} of the noise between seeds.",
        *reached(found),
    ]
    titles = TITLES
    head = ["extrapolation", "policy", "Spearman", "median regret, %", "mean regret, %", "near, %", "best picked, %"]
    for key, title in titles.items():
        if not found.get(key):
            continue
        rows = []
        for row in found[key]:
            s = row["summary"]
            rows.append(
                [row["way"], row["policy"], f"{s['spearman']:.2f}", percent(s["regret"], 2),
                 percent(s["mean_regret"], 2), percent(s["near"], 0), percent(s["right"], 0),
                 percent(s["cost"]), percent(s["held"], 0), f"{s['rounds']:.1f}"]
            )  # fmt: skip
        lines += section(f"Races, {title}", [*head, "cost, %", "90 % intervals hold, %", "rounds"], rows)
    rows = [
        [s["signal"], f"{s['spearman']:.2f}", percent(s["regret"], 2), percent(s["mean_regret"], 2),
         percent(s["near"], 0), percent(s["cost"])]
        for s in found["signals"]
    ]  # fmt: skip
    lines += section("Signals without a race", ["signal", *head[2:6], "cost, %"], rows)
    way, policy = found["default"]
    rows = []
    for row in found["limits"]:
        s = row["summary"]
        rows.append(
            [percent(row["limit"], 0), percent(s["cost"]), f"{s['spearman']:.2f}", percent(s["regret"], 2),
             percent(s["near"], 0), percent(s["held"], 0)]
        )  # fmt: skip
    head = ["limit, %", "cost, %", "Spearman", "median regret, %", "near, %", "intervals hold, %"]
    lines += section(f"{way}, {policy}: more or less cost", head, rows)
    for key, title in titles.items():
        if key in found["reliability"]:
            rows = [
                [f"{r['low']:g}–{r['high']:g}", f"{r['forecasts']:.0f}", percent(r["said"]), percent(r["was"]),
                 percent(r["error"])]
                for r in found["reliability"][key]
            ]  # fmt: skip
            head = [
                "P(best)",
                "forecasts",
                "mean said, %",
                "was best, %",
                "± (one standard error, winners drawn again)",
            ]
            lines += section(f"P(best) of {way}, {policy}, {title}: is it what it says?", head, rows)
    for key, title in titles.items():
        if key in found["reach"]:
            rows = [
                [f"{r['ratio']:g}", percent(r["cost"]), f"{r['spearman']:.2f}", percent(r["near"], 0),
                 percent(r["error"]), percent(r["width"]), percent(r["held"], 0)]
                for r in found["reach"][key]
            ]  # fmt: skip
            head = ["end / last observed", "cost, %", "Spearman", "near, %", "median error, %",
                    "90 % intervals: width, %", "hold, %"]  # fmt: skip
            lines += section(f"The same knowledge, all trained to a part of the end ({way}), {title}", head, rows)
    rows = [
        [text, count(r["tokens"]), percent(r["noise"], 2), percent(r["common"], 0), percent(r["spread"], 2)]
        for text, each in found["seeds"].items()
        for r in each
    ]
    head = ["text", "tokens", "between seeds, %", "common to all, % of its variance", "between architectures, %"]
    lines += section("Noise, relative", head, rows)
    lines += ["", "## Constants, fitted on everything", "", "```", json.dumps(found["calibration"], indent=1), "```"]
    return "\n".join(lines) + "\n"


TITLES = {
    "by_architecture": "nothing known of the architectures asked about",
    "by_text": "nothing known of the text",
    "by_both": "nothing known of the text, nor of the architectures",
}
BELIEF = """
How far to believe it. For every fold, constants, covariances, widths and library were learnt without what is asked
about, and the sets were drawn with a stream that nothing was chosen on. But the form of the model (traits, kernel,
widths of priors, the score of a screening, what a text makes of the mean curve) and the policy were chosen after
looking at this same table, on sets drawn with other streams. There are two texts and a part of a third, one size of
model (0.8 M parameters), and sets of 8 that overlap: only 12 to 14 architectures ever win, so the standard error of a
share is about 5 percentage points however many sets are drawn. The truth is the mean of four seeds (two for mamba); a
race sees one of them. The noise is the root mean square over architectures of the spread of seeds; one architecture
(fox), some seeds of which drop late, makes it large.

With one text in the library nothing says how much texts differ: a tenth of the variance is assumed. What a text makes
of the mean curve was set by three texts (the two of the table, and a third, see below): where one of the two is
unknown the intervals are too wide, on the third they hold too little. In all three together they hold about as often as
they say, but a new text makes all candidates' losses higher or lower than forecast alike: differences and P(best) are
surer than losses.

Screening: before the race every candidate trains all of the steps with a sixteenth of the batch on text full of copies,
and its score (half the loss of bytes that repeat the context, half that of all) is one more column of the library; its
cost (6.2 %) is part of the cost here, and of the first rungs of the full training all take only one. The race sees one
seed of each screening, the library the mean of two. Learning rates are the table's, for races with and without it: a
search of rates, which races of this length cannot afford at a tenth of the cost, is not counted.

Where the shortfall comes from: forecasts of new architectures rank by their screenings, which rank fox far too high (it
copies well on copied text; in full trainings most of its seeds have not begun to); what the race does after the
screening changes little: who overtakes whom between a quarter and the end is not seen before.
""".strip().split("\n")


def reached(found: Mapping[str, Any]) -> list[str]:
    """What the default does, beside what was asked for and what could be: everybody trained to the end with one seed,
    and to a quarter and a half with the same knowledge."""
    folds = {"by_architecture": "architectures unknown", "by_text": "text unknown", "by_both": "both unknown"}
    folds = {key: title for key, title in folds.items() if found.get(key)}
    runs = [
        next(r["summary"] for r in found[key] if [r["way"], r["policy"]] == list(found["default"])) for key in folds
    ]
    wanted: list[tuple[str, str, str, float, int, Callable[[float], bool]]] = [
        ("cost, % of training all to the end", "≤ 10", "cost", 100, 1, lambda x: x <= 0.1),
        ("median regret, % of the loss", "≤ 1", "regret", 100, 2, lambda x: x <= 0.01),
        ("sets with regret ≤ 0.3 of the noise, %", "≥ 80", "near", 100, 1, lambda x: x >= 0.795),
        ("Spearman with the final ranking", "≥ 0.85", "spearman", 1, 2, lambda x: x >= 0.845),
        ("90 % intervals hold the truth, %", "85–95", "held", 100, 0, lambda x: 0.845 <= x < 0.955),
    ]
    rows = []
    for title, asked, key, factor, digits, holds in wanted:
        cells = [(f"{factor * run[key]:.{digits}f}", holds(run[key])) for run in runs]
        rows.append([title, asked, *(cell if fine else f"**{cell}**" for cell, fine in cells)])
    lines = section(f"What is reached, by {', '.join(found['default'])}", ["", "asked for", *folds.values()], rows)
    last = next(row for row in reversed(found["signals"]) if row["signal"].startswith("loss after"))
    rows = [["to the end, nothing else known", "100.0", f"{last['spearman']:.2f}", f"{100 * last['near']:.0f}"]]
    if again := found.get("between_seeds"):
        title = "to the end, judged by another seed"
        rows.append([title, "100.0", f"{again['spearman']:.2f}", f"{100 * again['near']:.0f}"])
    for key, title in folds.items():
        for row in found["reach"][key][:2]:
            rows.append(
                [f"to 1/{row['ratio']:g}, {title}", f"{100 * row['cost']:.1f}", f"{row['spearman']:.2f}",
                 f"{100 * row['near']:.0f}"]
            )  # fmt: skip
    head = ["everybody trained, one seed", "cost, %", "Spearman", "near, %"]
    could = section("What could be: the same knowledge, and more training than is allowed", head, rows)
    return [*lines, "", *BELIEF, *could]


def section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    align = ["---:" if any(c.isdigit() for c in cell) else "---" for cell in (rows[0] if rows else head)]
    table = [head, align, *rows]
    return ["", f"## {title}", "", *("| " + " | ".join(row) + " |" for row in table)]


def kept_out(path: Path, found: Mapping[str, Any]) -> None:
    path.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    path.write_text(page(found), encoding="utf-8")


def simulated() -> list[CurveTable]:
    """Two texts."""
    names = [f"architecture {place}" for place in range(26)]
    drawn = [simulate_table(np.random.default_rng(seed), len(names), 8) for seed in (1, 2)]
    return [replace(table, text=f"simulated {place}", names=names) for place, table in enumerate(drawn)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", nargs="?", type=Path, help="default: the newest *truth*.json of benchmarks/results")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--signals", action="store_true", help="measure only these again, in the FILE of --out")
    parser.add_argument("--sets", type=int, default=200, help="of candidates, per text")
    parser.add_argument("--size", type=int, default=8, help="candidates of a set")
    parser.add_argument("--limit", type=float, default=0.1)
    parser.add_argument("--decay", type=float, help="share of a budget; default: the table's, or 0.2")
    parser.add_argument("--default", nargs=2, default=[SCREENING, "knowledge-gradient"], metavar=("WAY", "POLICY"))
    parser.add_argument("--ways", nargs="*", default=[*WAYS, SCREENING])
    parser.add_argument("--screenings", type=Path, nargs="*", default=[RESULTS / name for name in SCREENINGS])
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--out", type=Path, help="a Markdown file; the JSON goes beside it")
    parser.add_argument("--keep", type=Path, help="a JSON file of fitted constants, read and added to")
    parser.add_argument("--draw", type=int, default=0, help="other sets of candidates")
    parser.add_argument("--write", action="store_true", help="make the library that comes with plait, and nothing else")
    given = parser.parse_args()
    begun = time.perf_counter()

    def progress(text: str) -> None:
        print(f"{time.perf_counter() - begun:6.0f} s  {text}", flush=True)

    counts: dict[str, dict[str, float]] = {}
    traits: Traits = None
    better: dict[str, dict[str, float]] = {}
    screened: Screened | None = None
    if given.simulate:
        name, tables = "simulated", simulated()
        given.default[0], given.ways = "hierarchical", [way for way in given.ways if way != SCREENING]
    else:
        path = given.truth or max(RESULTS.glob("*truth*.json"))
        name, tables = path.name, read_tables(path)
        rows = json.loads(path.read_text(encoding="utf-8"))["architectures"]
        screened = read_screenings(
            given.screenings, tables, tables[0].provenance["batch"] * tables[0].provenance["seq_len"]
        )
        tables = [_without(table, set(table.names) - set(screened.names)) for table in tables]
        if given.write:
            specs = {row["name"]: row["spec"] for row in rows}
            traits = {name: traits_of(architecture(spec)) for name, spec in specs.items()}
            whole = library(tables, traits)
            about = {"table": path.name, "screenings": [each.name for each in given.screenings], **tables[0].provenance}
            screenings = screened.of(tables, whole.names)
            with_screenings = ScreenedLibrary.beside(whole, screenings, screenings.steps[-1])
            widths = [
                learn_width(tables, curves, traits, CALIBRATION, WRITTEN_SETS) for curves in (whole, with_screenings)
            ]
            document = library_document(tables, specs, about, widths[0], widths[1], screenings)
            REFERENCE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
            return
        traits = {row["name"]: traits_of(architecture(row["spec"])) for row in rows}
        for key in ("params", "flops_per_token", "state", "kv_cache"):
            if all(isinstance(row.get(key), int | float) for row in rows):
                counts[key] = {row["name"]: float(row[key]) for row in rows}
        better = measured([row["name"] for row in rows])
    decay = given.decay if given.decay is not None else float(tables[0].provenance.get("decay", 0.2))
    found: dict[str, Any] = {
        "date": date.today().isoformat(), "table": name, "texts": {t.text: len(t.names) for t in tables},
        "sets": given.sets, "draw": given.draw, "size": given.size, "limit": given.limit, "decay": decay,
        "default": given.default,
    }  # fmt: skip
    way, policy = given.default
    test = Backtest(tables, traits, given.sets, given.size, progress, given.keep, given.draw, screened)
    asked = test.by_architecture()
    if given.signals:
        found = json.loads(given.out.with_suffix(".json").read_text(encoding="utf-8"))
        kept_out(given.out, {**found, "signals": signals(tables, asked, counts, better)})
        return
    folds = {"by_architecture": asked}
    if len(tables) > 1:
        folds |= {"by_text": test.by_text(False), "by_both": test.by_text(True)}
    kept: dict[str, list[Replayed]] = {}
    for key, sets in folds.items():
        found[key] = []
        for each_way in given.ways if key == "by_architecture" else dict.fromkeys(("library", way)):
            for each_policy in given.policies if each_way == way else [policy]:
                some = sets if each_way in ("library", way) else sets[::OTHERS]
                results = played(some, each_policy, each_way, given.limit, decay)
                numbers = summary(results)
                found[key].append({"way": each_way, "policy": each_policy, "summary": numbers})
                said = " ".join(f"{k} {v:.3f}" for k, v in numbers.items())
                progress(f"{key:16s} {each_way:13s} {each_policy:19s} {said}")
                if (each_way, each_policy) == (way, policy):
                    kept[key] = results
    found["signals"] = signals(tables, asked, counts, better)
    if tables[0].loss_ASB.shape[1] > 1:
        found["between_seeds"] = between_seeds(asked)
    found["reliability"] = {key: reliability(results) for key, results in kept.items()}
    found["limits"] = [
        {"limit": limit, "summary": summary(played(asked[::OTHERS], policy, affordable(way, limit), limit, decay))}
        for limit in LIMITS
    ]
    found["reach"] = {key: reach(sets[::OTHERS], way) for key, sets in folds.items()}
    found["seeds"] = {table.text: seeds(table) for table in tables}
    found["calibration"] = asdict(test.constants("all", tables))
    found["seconds"] = time.perf_counter() - begun
    print(page(found))
    if given.out:
        kept_out(given.out, found)


if __name__ == "__main__":
    main()
