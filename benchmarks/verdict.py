"""Is the verdict right? Races replayed on a truth table of complete learning curves, against every cheaper signal.

    python benchmarks/verdict.py [TRUTH.json] [--simulate] [--sets 200] [--size 8] [--limit 0.1] [--out FILE.md]

The table (the newest `benchmarks/results/*truth*.json`; or simulated curves) holds losses of many architectures at many
budgets. Sets of candidates are drawn from it; in each, a race sees one seed and what it has paid for, and picks. Judged
by the mean over seeds at the last budget: Spearman's correlation of its forecast with the final ranking, regret, how
often the regret is at most 0.3 of the noise between seeds, the share of the cost of training all to the end, how often
90 % intervals hold the truth, and whether P(best) is what it says.

Constants are never fitted on what they are judged by. First: on half of the architectures (both texts), judged by sets
of the other half. Second: on the other text (all architectures). FILE.json, beside the table, holds all numbers.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from plait.analysis.curve_calibration import calibrate
from plait.analysis.curve_table import CurveTable, read_tables, simulate_table
from plait.analysis.foresight import count
from plait.analysis.learning_curve import WAYS, Calibration, extrapolate
from plait.analysis.race_policy import POLICIES
from plait.analysis.race_replay import Replayed, replay
from plait.analysis.rank import spearman

RESULTS = Path(__file__).parent / "results"
NEAR = 0.3  # of the noise: a regret that does not matter
HALVINGS = 3  # of the architectures
LIMITS = (0.03, 0.05, 0.1, 0.2, 0.4)
BINS = (0.0, 0.01, 0.05, 0.2, 0.4, 0.6, 0.8, 0.95, 1.0)


@dataclass(frozen=True)
class Asked:
    """One drawn set of candidates, with constants that know none of them."""

    table: CurveTable
    calibration: Calibration
    noise: float  # of the whole table, in nats
    seed: int


def by_architecture(tables: Sequence[CurveTable], sets: int, size: int, progress: Callable[[str], None]) -> list[Asked]:
    """`sets` for every text."""
    rng = np.random.default_rng(0)
    names = sorted(set.intersection(*(set(table.names) for table in tables)))
    asked = []
    for halving in range(HALVINGS):
        order = rng.permutation(len(names))
        halves = [{names[i] for i in part.tolist()} for part in np.array_split(order, 2)]
        for side, (out, kept) in enumerate((halves, halves[::-1])):
            part = 2 * halving + side
            calibration = calibrate([_only(table, kept) for table in tables])
            progress(f"constants without half {part + 1} of {2 * HALVINGS}")
            for table in tables:
                asked += list(
                    _sets(_only(table, out), table.noise, calibration, _share(sets, 2 * HALVINGS, part), size, rng)
                )
    return asked


def by_text(tables: Sequence[CurveTable], sets: int, size: int, progress: Callable[[str], None]) -> list[Asked]:
    rng = np.random.default_rng(1)
    asked = []
    for table in tables:
        calibration = calibrate([other for other in tables if other is not table])
        progress(f"constants without the text {table.text}")
        asked += list(_sets(table, table.noise, calibration, sets, size, rng))
    return asked


def _only(table: CurveTable, names: set[str]) -> CurveTable:
    return table.subset([i for i, name in enumerate(table.names) if name in names])


def _share(total: int, parts: int, part: int) -> int:
    return total * (part + 1) // parts - total * part // parts


def _sets(
    table: CurveTable, noise: float, calibration: Calibration, sets: int, size: int, rng: np.random.Generator
) -> Iterator[Asked]:
    for _ in range(sets):
        places = sorted(rng.choice(len(table.names), min(size, len(table.names)), replace=False).tolist())
        yield Asked(table.subset(places), calibration, noise, int(rng.integers(2**31)))


def played(asked: Sequence[Asked], policy: str, way: str, limit: float, decay: float, batch: int = 1) -> list[Replayed]:
    return [
        replay(a.table, policy, way, limit, a.calibration, a.seed, decay, batch, draws=800, noise=a.noise)
        for a in asked
    ]


def summary(results: Sequence[Replayed]) -> dict[str, float]:
    return {
        "spearman": float(np.mean([r.spearman for r in results])),
        "regret": float(np.median([r.regret_share for r in results])),
        "mean_regret": float(np.mean([r.regret_share for r in results])),
        "near": float(np.mean([r.regret_noise <= NEAR for r in results])),
        "right": float(np.mean([r.pick == r.best for r in results])),
        "cost": float(np.mean([r.cost for r in results])),
        "held": float(np.mean([r.held for r in results])),
        "rounds": float(np.mean([r.rounds for r in results])),
    }


def signals(
    tables: Sequence[CurveTable], asked: Sequence[Asked], counts: Mapping[str, Mapping[str, float]]
) -> list[dict[str, Any]]:
    """What costs less than a race, or knows less: counts (fewer is better, and more is better), one short training."""
    rows = []
    budgets = tables[0].budgets
    scores: dict[str, tuple[Callable[[CurveTable, int], Sequence[float]], float]] = {
        "chance": (lambda table, seed: np.random.default_rng(seed).random(len(table.names)).tolist(), 0.0)
    }
    for name, values in counts.items():
        scores[f"fewer {name}"] = (lambda table, seed, v=values: [v[n] for n in table.names], 0.0)
        scores[f"more {name}"] = (lambda table, seed, v=values: [-v[n] for n in table.names], 0.0)
    for place, budget in enumerate(budgets[:-1]):
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


def reliability(results: Sequence[Replayed]) -> list[dict[str, float]]:
    pairs = [pair for r in results for pair in r.p_best]
    rows = []
    for low, high in itertools.pairwise(BINS):
        held = [(p, was) for p, was in pairs if low <= p < high or (high == 1 == p)]
        if held:
            said, was = (float(np.mean(column)) for column in zip(*held, strict=True))
            rows.append({"low": low, "high": high, "forecasts": len(held), "said": said, "was": was})
    return rows


def reach(tables: Sequence[CurveTable], calibrations: Mapping[str, Calibration], way: str) -> list[dict[str, float]]:
    """All trained to 1/2, 1/4, … of the end: how good the forecast of the end is."""
    rows = []
    last = len(tables[0].budgets) - 1
    for back in range(1, last):
        correlations, held, widths, errors = [], [], [], []
        for table in tables:
            for seed in range(table.loss_ASB.shape[1]):
                seen = table.observations(dict.fromkeys(table.names, last - back + 1), [seed])
                forecast = extrapolate(seen, table.budgets[-1:], way, calibrations[table.text], reach=1e9)
                at = forecast.at(table.budgets[-1])
                correlations.append(spearman([at.loss[name] for name in table.names], table.truth))
                for name, truth in zip(table.names, table.truth.tolist(), strict=True):
                    low, high = at.interval(name, runs=table.loss_ASB.shape[1])
                    held.append(low <= truth <= high)
                    widths.append(high / low - 1)
                    errors.append(abs(at.loss[name] / truth - 1))
        rows.append(
            {"ratio": round(tables[0].budgets[-1] / tables[0].budgets[last - back], 2), "budgets": last - back + 1,
             "spearman": float(np.mean(correlations)), "held": float(np.mean(held)),
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
        + f", {found['sets']} sets of {found['size']} candidates per text, at most {percent(found['limit'], 0)} % of "
        "the cost of training all to the end (branches of "
        f"{percent(found['decay'], 0)} % of each budget counted), one seed each; {found['seconds']:.0f} s.",
        "",
        f"Regret: the pick's loss above the best one's. Near: regret at most {NEAR} of the noise between seeds.",
    ]
    titles = {"by_architecture": "constants from other architectures", "by_text": "constants from the other text"}
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
    rows = [
        [f"{r['low']:g}–{r['high']:g}", f"{r['forecasts']:.0f}", percent(r["said"]), percent(r["was"])]
        for r in found["reliability"]
    ]
    head = ["P(best)", "forecasts", "mean said, %", "was best, %"]
    lines += section(f"P(best) of {way}, {policy}: is it what it says?", head, rows)
    rows = [
        [f"{r['ratio']:g}", f"{r['budgets']:.0f}", f"{r['spearman']:.2f}", percent(r["error"]), percent(r["width"]),
         percent(r["held"], 0)]
        for r in found["reach"]
    ]  # fmt: skip
    head = ["end / last observed", "budgets seen", "Spearman", "median error, %", "90 % intervals: width, %", "hold, %"]
    lines += section(
        f"How far {way} reaches: all trained to a part of the end, constants of the other text", head, rows
    )
    rows = [
        [text, count(r["tokens"]), percent(r["noise"], 2), percent(r["common"], 0), percent(r["spread"], 2)]
        for text, each in found["seeds"].items()
        for r in each
    ]
    head = ["text", "tokens", "between seeds, %", "common to all, % of its variance", "between architectures, %"]
    lines += section("Noise, relative", head, rows)
    lines += ["", "## Constants, fitted on everything", "", "```", json.dumps(found["calibration"], indent=1), "```"]
    return "\n".join(lines) + "\n"


def section(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    align = ["---:" if any(c.isdigit() for c in cell) else "---" for cell in (rows[0] if rows else head)]
    table = [head, align, *rows]
    return ["", f"## {title}", "", *("| " + " | ".join(row) + " |" for row in table)]


def simulated() -> list[CurveTable]:
    """Two texts."""
    names = [f"architecture {place}" for place in range(26)]
    drawn = [simulate_table(np.random.default_rng(seed), len(names), 8) for seed in (1, 2)]
    return [replace(table, text=f"simulated {place}", names=names) for place, table in enumerate(drawn)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("truth", nargs="?", type=Path, help="default: the newest *truth*.json of benchmarks/results")
    parser.add_argument("--simulate", action="store_true")
    parser.add_argument("--sets", type=int, default=200, help="of candidates, per text")
    parser.add_argument("--size", type=int, default=8, help="candidates of a set")
    parser.add_argument("--limit", type=float, default=0.1)
    parser.add_argument("--decay", type=float, help="share of a budget; default: the table's, or 0.2")
    parser.add_argument("--default", nargs=2, default=["hierarchical", "knowledge-gradient"], metavar=("WAY", "POLICY"))
    parser.add_argument("--ways", nargs="*", default=list(WAYS))
    parser.add_argument("--policies", nargs="*", default=list(POLICIES))
    parser.add_argument("--out", type=Path, help="a Markdown file; the JSON goes beside it")
    given = parser.parse_args()
    begun = time.perf_counter()

    def progress(text: str) -> None:
        print(f"{time.perf_counter() - begun:6.0f} s  {text}", flush=True)

    counts: dict[str, dict[str, float]] = {}
    if given.simulate:
        name, tables = "simulated", simulated()
    else:
        path = given.truth or max(RESULTS.glob("*truth*.json"))
        name, tables = path.name, read_tables(path)
        rows = json.loads(path.read_text(encoding="utf-8"))["architectures"]
        for key in ("params", "flops_per_token", "state"):
            if all(isinstance(row.get(key), int | float) for row in rows):
                counts[key] = {row["name"]: float(row[key]) for row in rows}
    decay = given.decay if given.decay is not None else float(tables[0].provenance.get("decay", 0.2))
    found: dict[str, Any] = {
        "date": date.today().isoformat(), "table": name, "texts": {t.text: len(t.names) for t in tables},
        "sets": given.sets, "size": given.size, "limit": given.limit, "decay": decay, "default": given.default,
    }  # fmt: skip
    way, policy = given.default
    asked = by_architecture(tables, given.sets, given.size, progress)
    folds = {"by_architecture": asked}
    if len(tables) > 1:
        folds["by_text"] = by_text(tables, given.sets, given.size, progress)
    kept: list[Replayed] = []
    for key, sets in folds.items():
        found[key] = []
        for each_way in given.ways:
            for each_policy in given.policies:
                results = played(sets, each_policy, each_way, given.limit, decay)
                numbers = summary(results)
                found[key].append({"way": each_way, "policy": each_policy, "summary": numbers})
                said = " ".join(f"{k} {v:.3f}" for k, v in numbers.items())
                progress(f"{key:16s} {each_way:13s} {each_policy:19s} {said}")
                if key == "by_architecture" and (each_way, each_policy) == (way, policy):
                    kept = results
    found["signals"] = signals(tables, asked, counts)
    found["reliability"] = reliability(kept)
    found["limits"] = [
        {"limit": limit, "summary": summary(played(asked, policy, way, limit, decay))} for limit in LIMITS
    ]
    others = {t.text: calibrate([o for o in tables if o is not t] or tables) for t in tables}
    found["reach"] = reach(tables, others, way)
    found["seeds"] = {table.text: seeds(table) for table in tables}
    found["calibration"] = asdict(calibrate(tables))
    found["seconds"] = time.perf_counter() - begun
    text = page(found)
    print(text)
    if given.out:
        given.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
