"""Is P(best) calibrated if the model is correct, and is a larger library worth its trainings?

    python benchmarks/verdict_calibration.py [--repetitions 150] [--sets 60] [--out FILE.md]

First: data are simulated from the fitted model (traits, architectures, texts, seeds, each with its covariance over
budgets; architecture effects with Student's t). For every simulation a library is fitted again from what a race may
know, eight candidates are raced, and P(best) is compared with the actual best. Repetitions are independent, unlike sets
drawn from one truth table. Second: the backtest of `verdict.py` on unknown architectures, with 5, 10, 15 and all 21 of
the remaining architectures in the library (constants: those fitted on everything).
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from backtest import RESULTS, reliability, summary
from truth_tables import read_tables
from verdict_page import section

from plait.analysis.curve_library import Known, Library, library
from plait.analysis.curve_posterior import T_FREEDOM, alike
from plait.analysis.curve_table import CurveTable
from plait.analysis.learning_curve import CALIBRATION
from plait.analysis.pareto import Floats
from plait.analysis.race_policy import Replayed, replay
from plait.core.files import read_json
from plait.model.architecture import architecture
from plait.model.reference_curves import traits as traits_of

SIZE, LIMIT, DRAWS = 8, 0.1, 400
LIBRARIES = (5, 10, 15, 21)
LEVEL, SLOPE = 0.15, 0.02  # of a text's own curve beside the library's: ln loss, and per e-fold
Traits = dict[str, list[float]]


def root(cov: Floats) -> Floats:
    value, vector = np.linalg.eigh(cov)
    return np.asarray(vector * np.sqrt(np.maximum(value, 0.0)))


def world(known: Library, tables: Sequence[CurveTable], rng: np.random.Generator) -> list[CurveTable]:
    """As many texts, architectures and seeds as the tables have, drawn anew."""
    learnt, phi_AF = known.covariances, known.standard(known.traits_AF)
    count, budgets = len(known.names), len(known.budgets)
    smooth_AB = root(alike(phi_AF, phi_AF)) @ rng.normal(size=(count, budgets)) @ root(learnt.alike_BB).T
    ordinary_A = rng.chisquare(T_FREEDOM, size=count) / T_FREEDOM
    own_AB = rng.normal(size=(count, budgets)) @ root(learnt.own_BB).T / np.sqrt(ordinary_A)[:, None]
    found = []
    for table in tables:
        text_AB = rng.normal(size=(count, budgets)) @ root(learnt.text_BB).T
        seeds_ASB = rng.normal(size=(count, known.runs, budgets)) @ root(known.seeds_BB).T
        curve_B = known.curve_TB.mean(axis=0) + rng.normal(0, LEVEL) + rng.normal(0, SLOPE) * (known.x_B - known.x_B[0])
        log_ASB = curve_B + (smooth_AB + own_AB + text_AB)[:, None] + seeds_ASB
        places = [table.names.index(name) for name in known.names]
        found.append(replace(table.subset(places), loss_ASB=np.exp(log_ASB)))
    return found


def raced(table: CurveTable, curves: Library, traits: Traits, noise: float, seed: int) -> Replayed:
    known = Known(curves, traits, {name: name for name in table.names})
    return replay(
        table, "knowledge-gradient", "library", LIMIT, CALIBRATION, seed, draws=DRAWS, noise=noise, known=known
    )


def simulated(tables: Sequence[CurveTable], traits: Traits, repetitions: int) -> dict[str, list[Replayed]]:
    whole = library(tables, traits)
    found: dict[str, list[Replayed]] = {"architectures unknown": [], "text unknown": []}
    for repetition in range(repetitions):
        rng = np.random.default_rng([3, repetition])
        first, *others = world(whole, tables, rng)
        asked = first.subset(sorted(rng.choice(len(first.names), SIZE, replace=False).tolist()))
        may_know = {
            "architectures unknown": library([first, *others], traits).without(asked.names),
            "text unknown": library(others, traits),
        }
        for key, curves in may_know.items():
            # Each world has its own winner: named by the repetition, it is a trial of its own.
            one = raced(asked, curves, traits, first.noise, repetition)
            found[key].append(replace(one, best=f"{repetition}"))
    return found


def by_size(tables: Sequence[CurveTable], traits: Traits, sets: int) -> Iterator[tuple[int, list[Replayed]]]:
    names = sorted(tables[0].names)
    for count in LIBRARIES:
        rng, found = np.random.default_rng(5), []
        for drawn in range(sets):
            table = tables[drawn % len(tables)]
            places = [table.names.index(names[i]) for i in sorted(rng.choice(len(names), SIZE, replace=False).tolist())]
            asked, seed = table.subset(places), int(rng.integers(2**31))
            others = rng.permutation([name for name in names if name not in asked.names]).tolist()
            curves = library(tables, traits).without([*asked.names, *others[count:]])
            found.append(raced(asked, curves, traits, table.noise, seed))
        yield count, found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", nargs="?", type=Path, help="default: the newest *truth.json of benchmarks/results")
    parser.add_argument("--repetitions", type=int, default=150)
    parser.add_argument("--sets", type=int, default=60)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    path = given.truth or max(RESULTS.glob("*h200-truth.json"))
    tables = read_tables(path)
    traits = {row["name"]: traits_of(architecture(row["spec"])) for row in read_json(path)["architectures"]}
    lines = ["# P(best) where the model is right, and libraries of several sizes", "",
             f"`python benchmarks/verdict_calibration.py`, table {path.name}: {given.repetitions} worlds drawn from "
             f"what the library has learnt, and {given.sets} sets of {SIZE} from the table."]  # fmt: skip
    for title, results in simulated(tables, traits, given.repetitions).items():
        rows = [
            [
                f"{r['low']:g}–{r['high']:g}",
                f"{r['forecasts']:.0f}",
                *(f"{100 * r[k]:.1f}" for k in ("said", "was", "error")),
            ]
            for r in reliability(results)
        ]
        head = ["P(best)", "forecasts", "mean said, %", "was best, %", "± (one standard error)"]
        held = summary(results)["held"]
        lines += section(f"Drawn from the model, {title} (90 % intervals hold {100 * held:.0f} %)", head, rows)
        print("\n".join(lines[-len(rows) - 4 :]), flush=True)
    rows = []
    for count, results in by_size(tables, traits, given.sets):
        s, each = summary(results), [r.spearman for r in results]
        error = float(np.std(each, ddof=1) / np.sqrt(len(each)))
        rows.append(
            [f"{count}", f"{s['spearman']:.3f} ± {error:.3f}", f"{100 * s['near']:.0f}", f"{100 * s['cost']:.1f}"]
        )
        print(rows[-1], flush=True)
    head = ["architectures in the library", "Spearman", "near, %", "cost, %"]
    lines += section("The backtest with libraries of several sizes, architectures unknown", head, rows)
    if given.out:
        given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
