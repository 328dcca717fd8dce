"""Screenings of the truth table's architectures (`proxy_training.py`, setup tiny-batch): what a race may know of them.

A screening trains all of the steps with a sixteenth of the batch on text whose every piece of 8 to 32 bytes is followed
by its copy, and is scored by held-out bytes, those that repeat the context above all.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plait.analysis.curve_covariance import seed_covariance
from plait.analysis.curve_screening import Screenings
from plait.analysis.curve_table import CurveTable
from plait.analysis.pareto import Floats
from plait.racing.screening import repeats_share

SETUP, KIND = "tiny-batch", "short"
SEEDS = 2
SHARE = 1 / 16  # of the batch


def score(parts: Mapping[str, float], tokens: float) -> float:
    """Of a screening of so many tokens."""
    share = repeats_share(tokens)
    return share * parts["repeats"] + (1 - share) * parts["loss"]


@dataclass(frozen=True)
class Screened:
    """Of all architectures of all texts. `loss_TASR`: ln losses by steps and seed; where there is one seed, twice."""

    texts: list[str]
    names: list[str]
    known: Screenings
    loss_TASR: Floats

    def of(self, tables: list[CurveTable], names: list[str]) -> Screenings:
        """What a library of these tables and architectures holds."""
        return self.known.of([self.texts.index(t.text) for t in tables], [self.names.index(n) for n in names])

    def seen(self, asked: CurveTable, steps: int, run: int) -> dict[str, float]:
        """One seed of every candidate after so many steps."""
        place = self.known.steps.index(steps)
        loss_AR = self.loss_TASR[self.texts.index(asked.text), :, place]
        return {name: float(loss_AR[self.names.index(name), run % SEEDS]) for name in asked.names}


def read_screenings(path: Path, tables: list[CurveTable], tokens_per_step: int) -> Screened:
    found: dict[tuple[str, str, int], dict[int, float]] = {}
    for row in (r for r in json.loads(path.read_text(encoding="utf-8"))["setups"] if r["setup"] == SETUP):
        for run in (run for run in row["runs"] if run["kind"] == KIND):
            for tokens, parts in run["annealed"]:
                steps = round(tokens / (SHARE * tokens_per_step))
                found.setdefault((run["text"], row["architecture"], steps), {})[run.get("seed", 3)] = score(
                    parts, tokens
                )
    texts, names = [table.text for table in tables], list(tables[0].names)
    counts = sorted({steps for _, _, steps in found})
    whole = [steps for steps in counts if all((t, n, steps) in found for t in texts for n in names)]
    by_seed = [[[[v for _, v in sorted(found[t, n, steps].items())] for steps in whole] for n in names] for t in texts]
    loss_TASR = np.log([[[(seeds * SEEDS)[:SEEDS] for seeds in by] for by in rows] for rows in by_seed])
    pairs = np.array([by for rows in by_seed for by in rows if all(len(seeds) == SEEDS for seeds in by)])
    noise_SS = seed_covariance(pairs.swapaxes(1, 2)[None], np.log(whole))
    known = Screenings(whole, loss_TASR.mean(axis=3), np.diag(noise_SS), SEEDS, tokens_per_step)
    return Screened(texts, names, known, loss_TASR)
