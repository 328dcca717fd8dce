"""Is the verdict right? Races replayed on a truth table of complete learning curves, against every cheaper signal.

    python benchmarks/verdict.py [TRUTH.json] [--simulate] [--sets 200] [--size 8] [--limit 0.1] [--out FILE.md]
    python benchmarks/verdict.py --draw 97 --ways screening --policies knowledge-gradient       the default, other sets

The table (the newest `benchmarks/results/*truth*.json`; or simulated curves) holds losses of many architectures at many
budgets. Sets of candidates are drawn from it; in each, a race observes one seed at the budgets it has paid for, and
selects a candidate. Evaluated against the mean over seeds at the last budget: Spearman's correlation of the forecast
with the final ranking, regret, how often the regret is at most 0.3 of the noise between seeds, the cost as a fraction
of training all to the end, the coverage of 90 % intervals, and the calibration of P(best).

Test data are never used for fitting (`backtest.py`). FILE.json, next to the page, has all numbers.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, replace
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from backtest import (
    RESULTS,
    SCREENING,
    Backtest,
    Replayed,
    Traits,
    affordable,
    between_seeds,
    measured,
    played,
    reach,
    reliability,
    seeds,
    signals,
    summary,
    without_names,
)
from curve_calibration import learn_width
from screenings import Screened, read_screenings
from simulated_curves import simulate_table
from truth_tables import library_document, read_tables
from verdict_page import OTHERS, kept_out, page

from plait.analysis.curve_library import library
from plait.analysis.curve_screening import ScreenedLibrary
from plait.analysis.curve_table import CurveTable
from plait.analysis.learning_curve import CALIBRATION, WAYS
from plait.analysis.race_policy import POLICIES
from plait.model.architecture import architecture
from plait.model.reference_curves import PATH as REFERENCE
from plait.model.reference_curves import traits as traits_of

SCREENINGS = ("2026-11-17-h200-proxy-training.json", "2026-11-17-h200-proxy-mixed.json", "2026-11-18-h200-copies.json")
WRITTEN_SETS = 400  # left out of the library that comes with plait to fit its width
LIMITS = (0.03, 0.05, 0.1, 0.2, 0.4)


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
        tables = [without_names(table, set(table.names) - set(screened.names)) for table in tables]
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
