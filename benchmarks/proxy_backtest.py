"""Do cheaper trainings (`proxy_training.py`) predict the best architecture? Alone, with the library, and in a race.

    python benchmarks/proxy_backtest.py benchmarks/results/DATE-h200-proxy-training.json [--race] [--out FILE.md]

Alone: candidates are ranked by one score of the proxy. Library: the score is one more variable of the library
(`curve_screening`), fitted without the test candidates, and forecasts are conditional on the candidates' scores;
nothing else is trained. Race (`--race`): a race that has paid for the proxy of every candidate and continues with the
rest of the limit, next to the same race without the proxy. Sets of 8 candidates are drawn and evaluated as in
`verdict.py`, from the architectures with which the proxy was trained.

Letters: A architectures, B budgets, T texts.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from backtest import NEAR, RESULTS, Asked, Backtest, Replayed, summary, without_names
from truth_tables import read_tables
from verdict_page import section

from plait.analysis.curve_library import Known, library
from plait.analysis.curve_screening import WORTH as PLACED
from plait.analysis.curve_screening import ScreenedKnown, ScreenedLibrary, Screenings
from plait.analysis.curve_table import CurveTable
from plait.analysis.pareto import Floats
from plait.analysis.race_policy import replay
from plait.analysis.rank import spearman
from plait.model.architecture import architecture
from plait.model.reference_curves import traits as traits_of

WORTH = 1.5  # tokens of the table's training that are about worth one of a proxy's
LIMIT = 0.1
Column = tuple[str, str, float, float, str]  # setup, kind of text, factor of the rate, tokens, part of the loss


class Proxies:
    """The losses of a file of proxies by column, text and architecture."""

    def __init__(self, path: Path) -> None:
        self.found: dict[Column, dict[tuple[str, str], float]] = {}
        self.flops: dict[tuple[str, str], float] = {}
        for row in json.loads(path.read_text(encoding="utf-8"))["setups"]:
            self.flops[row["setup"], row["architecture"]] = row["flops_per_token"]
            for run in row["runs"]:
                for tokens, parts in run["annealed"]:
                    for part, loss in parts.items():
                        key = (row["setup"], run["kind"], round(run["factor"], 3), float(tokens), part)
                        self.found.setdefault(key, {})[run["text"], row["architecture"]] = loss

    def names(self, column: Column, tables: list[CurveTable]) -> list[str]:
        there = self.found[column]
        return [name for name in tables[0].names if all((table.text, name) in there for table in tables)]

    def losses(self, column: Column, text: str, names: list[str]) -> Floats:
        return np.log([self.found[column][text, name] for name in names])


class ProxyBacktest(Backtest):
    """Sets of candidates whose library holds the proxy, and which have one of their own."""

    def __init__(self, proxies: Proxies, columns: list[Column], *given: Any) -> None:
        super().__init__(*given)
        self.proxies, self.columns = proxies, columns

    def _known(self, tables: Any, asked: CurveTable, without: Any, calibration: Any) -> Known | None:
        assert self.traits is not None
        plain = library(tables, self.traits)
        if not self.columns:
            return Known(plain.without(without), self.traits, {name: name for name in asked.names})
        (column,) = self.columns
        loss_TA = np.array([self.proxies.losses(column, table.text, plain.names) for table in tables])
        at_B = plain.between(np.log([WORTH * column[3]]))[0]  # its seeds vary as those of trainings of such a length
        noise = np.array([at_B @ plain.seeds_BB @ at_B]) / loss_TA.var(axis=1).mean()
        known = Screenings([1], loss_TA[:, :, None], noise, 1, round(WORTH * column[3] / PLACED))
        curves = ScreenedLibrary.beside(plain, known, 1).without(without)
        own = {name: float(self.proxies.losses(column, asked.text, [name])[0]) for name in asked.names}
        return ScreenedKnown(curves, self.traits, {name: name for name in asked.names}, own)


def judged(asked: list[Asked], scores: list[list[float]]) -> dict[str, float]:
    """Of numbers of which the least is to be the best."""
    correlations, shares, near = [], [], []
    for a, values in zip(asked, scores, strict=True):
        regret = float(a.table.truth[int(np.argmin(values))] - a.table.truth.min())
        correlations.append(spearman(values, a.table.truth))
        shares.append(regret / float(a.table.truth.min()))
        near.append(regret / a.noise <= NEAR)
    return {
        "spearman": float(np.nanmean(correlations)),
        "near": float(np.mean(near)),
        "mean_regret": float(np.mean(shares)),
    }


def forecasts(asked: list[Asked]) -> list[list[float]]:
    """By the library and the proxy alone: nothing of a candidate's own training is seen."""
    found = []
    for a in asked:
        assert a.known is not None
        mean_CU, _ = a.known.prior(a.table.names, np.log(a.table.budgets[-1:]))
        found.append(mean_CU[:, 0].tolist())
    return found


def raced(asked: list[Asked], cost: float) -> list[Replayed]:
    """With what the proxies leave of the limit."""
    return [
        replay(
            a.table, "knowledge-gradient", "library", LIMIT, a.calibration, a.seed, 0.2, 1, 800, a.noise, a.known, cost
        )
        for a in asked
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("proxies", type=Path)
    parser.add_argument("--truth", type=Path, default=RESULTS / "2026-11-16-h200-truth.json")
    parser.add_argument("--sets", type=int, default=100, help="of candidates, per text")
    parser.add_argument("--size", type=int, default=8)
    parser.add_argument("--draw", type=int, default=0)
    parser.add_argument("--least", type=int, default=12, help="architectures that a column must have")
    parser.add_argument("--columns", nargs="*", default=[], help="only those that contain one of these words")
    parser.add_argument("--race", action="store_true")
    parser.add_argument("--keep", type=Path, help="a JSON file of fitted constants, read and added to")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    tables = read_tables(given.truth)
    rows = json.loads(given.truth.read_text(encoding="utf-8"))["architectures"]
    traits = {row["name"]: traits_of(architecture(row["spec"])) for row in rows}
    cost_of = {row["name"]: row["flops_per_token"] for row in rows}
    proxies = Proxies(given.proxies)
    found: list[list[str]] = []
    for column in sorted(proxies.found):
        setup, kind, _, tokens, part = column
        title = f"{setup}, {kind} text, {tokens / 1e6:.2f} M tokens, {part}"
        names = proxies.names(column, tables)
        if len(names) < given.least or (given.columns and not all(word in title for word in given.columns)):
            continue
        shares = [proxies.flops[setup, n] * tokens / (cost_of[n] * tables[0].budgets[-1]) for n in names]
        cost, begun = float(np.mean(shares)), time.perf_counter()
        some = [without_names(table, set(table.names) - set(names)) for table in tables]

        def say(text: str) -> None:
            print(f"    {text}", flush=True)

        keep = given.keep and given.keep.with_suffix(f".{len(names)}.json")
        test = ProxyBacktest(proxies, [column], some, traits, given.sets, given.size, say, keep, given.draw)
        asked = test.by_architecture()
        alone = judged(asked, [proxies.losses(column, a.table.text, a.table.names).tolist() for a in asked])
        told = judged(asked, forecasts(asked))
        test.columns = []
        without = judged(asked, forecasts(test.by_architecture()))
        cells = [title, str(len(names)), f"{100 * cost:.1f}"]
        for each in (alone, without, told):
            cells += [f"{each['spearman']:.2f}", f"{100 * each['near']:.0f}", f"{100 * each['mean_regret']:.2f}"]
        if given.race:
            for sets, paid in ((asked, cost), (test.by_architecture(), 0.0)):
                each = summary(raced(sets, paid))
                cells += [f"{each['spearman']:.2f}", f"{100 * each['near']:.0f}", f"{100 * each['mean_regret']:.2f}"]
        found.append(cells)
        print(" | ".join(cells), f"({time.perf_counter() - begun:.0f} s)", flush=True)
    ways = ["alone", "library alone", "library and proxy", *(["race and proxy", "race alone"] if given.race else [])]
    head = ["proxy", "architectures", "cost, %"]
    head += [f"{way}: {what}" for way in ways for what in ("Spearman", "near, %", "mean regret, %")]
    if given.out:
        given.out.write_text("\n".join(section("Proxies, nothing known of the architectures", head, found)[1:]) + "\n")


if __name__ == "__main__":
    main()
