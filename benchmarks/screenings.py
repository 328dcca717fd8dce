"""Screenings of the truth table's architectures (`proxy_training.py`): the data available to a race.

A screening trains for all of the steps with a sixteenth of the batch on text with copies, and is scored by the loss of
held-out bytes that repeat the context. As in a race (`racing.screening`), all pieces of the text are copied in a short
screening, and every second one in a long one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from plait.analysis.curve_posterior import seed_covariance
from plait.analysis.curve_screening import Scale, Screenings
from plait.analysis.curve_table import CurveTable
from plait.analysis.pareto import Floats
from plait.racing.screening import copies_share

SETUPS = ("tiny-batch", "tiny-early", "tiny-mixed", "tiny-apart", "tiny-both")  # 2 × 256 bytes per step, one rate
KINDS = {1.0: "short", 0.5: "some"}  # of text, by the share of pieces that have a copy
SEEDS = 3  # at most
SHARE = 1 / 16  # of the batch


@dataclass(frozen=True)
class Screened:
    """Of all architectures of all texts. `loss_TASR`: ln losses by steps and seed; where there are fewer, again."""

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


def read_screenings(paths: Sequence[Path], tables: list[CurveTable], tokens_per_step: int) -> Screened:
    """Of the architectures and steps that all texts have."""
    losses: dict[tuple[str, str, int], dict[int, float]] = {}
    rows = [row for path in paths for row in json.loads(path.read_text(encoding="utf-8"))["setups"]]
    for row in (row for row in rows if row["setup"] in SETUPS):
        for run in row["runs"]:
            for tokens, parts in run["annealed"]:
                if run["kind"] == KINDS.get(copies_share(tokens)):
                    steps = round(tokens / (SHARE * tokens_per_step))
                    by_seed = losses.setdefault((run["text"], row["architecture"], steps), {})
                    by_seed[run.get("seed", 3)] = parts["repeats"]
    texts = [table.text for table in tables]
    steps = [s for s in sorted({key[2] for key in losses}) if sum(key[2] == s for key in losses) > len(losses) // 5]
    names = [n for n in tables[0].names if all((t, n, s) in losses for t in texts for s in steps)]
    by_seed_TAS = [[[[v for _, v in sorted(losses[t, n, s].items())] for s in steps] for n in names] for t in texts]
    loss_TASR = np.log([[[(seeds * SEEDS)[:SEEDS] for seeds in by] for by in rows] for rows in by_seed_TAS])
    mean_TAS = np.array([[[np.log(seeds).mean() for seeds in by] for by in rows] for rows in by_seed_TAS])
    scales = [Scale.of(mean_TAS[..., s]) for s in range(len(steps))]
    scores_TARS = np.stack(
        [np.stack([scales[s].scores(loss_TASR[:, :, s, r]) for s in range(len(steps))], axis=2) for r in range(2)], 2
    )
    noise_SS = seed_covariance(np.exp(scores_TARS), np.log(steps))
    known = Screenings(steps, mean_TAS, np.diag(noise_SS), 2, tokens_per_step)
    return Screened(texts, names, known, loss_TASR)
