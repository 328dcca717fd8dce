"""Mechanistic Architecture Design's trainings: §C.1–C.3 for text, Table B.1 for a task."""

from __future__ import annotations

import numpy as np

from plait.papers.mad.scaling_presets import TABLE_C2
from plait.papers.recipes import Published
from plait.training.recipe import Recipe

SCALING = Recipe(seq_len=8192, batch=64, lr=8e-4, warmup=0.01, min_lr_ratio=0.1, weight_decay=0.1,
                 no_weight_decay=("hyena", "mh-hyena", "hyena-experts"))  # fmt: skip

RECIPES = {
    "mad-synthetic": Published(
        Recipe(batch=128, seq_len=128, lr=1e-3, warmup=0, beta2=0.98, weight_decay=0.1, clip=0.0), 20_000,
        "MAD Table B.1",
    ),
    "mad-scaling": Published(SCALING, 10_000, "MAD C.1 to C.3, 150M"),
}  # fmt: skip


def mad_recipe(params: float, flops: float, seq_len: int = 8192) -> Recipe:
    """MAD's recipe at a size and a FLOP budget, as `plait train SPEC --recipe mad-scaling --flops 4e18` resolves it.

    The learning rate is Table C.2's: at a row's size what is printed there, between rows along the logarithm of the
    size, beyond the first and the last row theirs. (The text calls the rates linear in the size; as printed they are
    linear in the row's index between the anchors.) The batch is Table C.1's for the largest budget listed that is not
    above `flops`, 524k tokens below the smallest, and 262k for models below 54M parameters."""
    sizes = np.array([1e6 * row.params_m for row in TABLE_C2], dtype=float)
    rates = np.array([row.lr for row in TABLE_C2], dtype=float)
    lr = float(np.interp(np.log(params), np.log(sizes), rates))
    tokens = 262_144 if params < 54e6 else 524_288 if flops < 2e20 else 2**20 if flops < 2e21 else 2**21
    return SCALING.with_values({"lr": lr, "seq_len": seq_len, "batch": max(1, tokens // seq_len)})
