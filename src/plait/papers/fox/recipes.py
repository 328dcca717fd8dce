"""Forgetting Transformer's trainings: Tables 4, 5 and 7.

`fox-340m-2k` is Table 7's: sequences of 2048 tokens, 15B tokens of SlimPajama. The page gives no more of it: tokens per
step, learning rate and warm-up are `fox-360m`'s.
"""

from __future__ import annotations

from plait.papers.fox.presets import SIZES, TABLE_5
from plait.papers.recipes import Published
from plait.training.recipe import Recipe

FOX = Recipe(batch=32, seq_len=16384, lr=2e-3, warmup=512, weight_decay=0.1, clip=1.0)

RECIPES = {
    "fox-340m-2k": Published(FOX.with_values({"batch": 256, "seq_len": 2048}), 28_610, "FoX Table 7 (340M, 15B, 2k)"),
    **{
        f"fox-{size}": Published(FOX.with_values({"lr": row.lr}), row.steps, "FoX Table 4")
        for size, row in SIZES.items()
    },
    **{
        f"fox-48b-{name}": Published(FOX.with_values({"lr": lr}), 92_160, "FoX Table 5") for name, lr in TABLE_5.items()
    },
}
