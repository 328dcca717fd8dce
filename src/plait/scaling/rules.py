"""Batch size and learning rate of planned runs: the batch depends on the budget, the rate on the width and the batch.

Budgets that MAD's tables cover follow its rules (`papers.recipes`: Tables C.1 and C.2). Smaller budgets follow these:

batch   TABLE_BATCH · (C / TABLE_FLOPS)^(1/3) tokens, rounded to a power of two: the critical batch grows with the
        number of tokens, which grows as C^(1/2) (McCandlish et al. 2018). All sizes of a group have the same batch: one
        that grows with the size biases the group's best size downward (Poli et al. 2024, Figure C.1). The batch is
        small enough for the group's shortest run to have LEAST_STEPS steps: shorter runs do not follow the law
decay   the cosine ends at 0: the tables' tenth of the peak would leave a short training above the loss it can reach
rate    found at one width and batch, and transferred to others as

            rate ∝ 1 / d · batch^(1/4)        from SMALL_BATCH tokens per step on; below it the batch does not count

        1 / d as a matrix of d inputs moves d times as far at the same rate (Yang et al. 2022). The power of the batch
        was measured on bytes, 0.25 (−0.01 … 0.40), below the square root that holds where noise alone bounds the rate
        (Malladi et al. 2022): benchmarks/results/2026-11-17-scaling-rates.md. From SMALL_RATE it leads to 0.72 / d at
        2^19 tokens per step, where the tables have 0.5 to 0.8 / d
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plait.core.errors import UserError
from plait.training.recipe import Recipe

TABLE_FLOPS, TABLE_BATCH = 4e18, 2**19
SMALL_BATCH, BATCH_POWER = 2**13, 0.25  # tokens per step above which the rate depends on the batch, and the power
#: The learning rate of models far smaller than those of the tables, and the width it was found at.
SMALL_RATE, SMALL_WIDTH = 4e-3, 64
LEAST_STEPS = 500  # runs with fewer have a higher loss than the law of longer ones

#: Active parameters, FLOPs and tokens of a sequence → a recipe.
PaperRule = Callable[[float, float, int], Recipe]


@dataclass(frozen=True)
class Rate:
    """A learning rate, and the width and the tokens per step at which it was found to be the best."""

    value: float = SMALL_RATE
    width: int = SMALL_WIDTH
    batch: int = SMALL_BATCH

    def at(self, width: int, batch: int) -> float:
        more = max(batch, SMALL_BATCH) / max(self.batch, SMALL_BATCH)
        return float(self.value * (self.width / width) * more**BATCH_POWER)

    @classmethod
    def read(cls, text: str) -> Rate:
        """`4e-3`, at width 64; `4e-3@128`, at that width; `4e-3@128@32768`, at that many tokens per step as well."""
        try:
            value, *found_at = text.split("@")
            rate = cls(float(value), *map(int, found_at))
        except (TypeError, ValueError):
            rate = cls(math.nan)
        if not (0 < rate.value < math.inf and rate.width >= 1 and rate.batch >= 1):
            raise UserError(
                f"--lr {text}: write a rate, or RATE@WIDTH, or RATE@WIDTH@TOKENS with the width and the tokens per "
                "step it was found at: 4e-3@64@8192."
            )
        return rate


def batch_tokens(flops: float) -> int:
    """Tokens per step at budgets below the tables', the same for every size of a group."""
    return int(2 ** max(0, round(math.log2(TABLE_BATCH * (flops / TABLE_FLOPS) ** (1 / 3)))))


def recipe_for(
    paper: PaperRule,
    *,
    params: float,
    width: int,
    flops: float,
    seq_len: int,
    batch: int | None = None,
    rate: Rate | None = None,
    values: dict[str, Any] | None = None,
    shortest: float = math.inf,
) -> Recipe:
    """The recipe of one run. A given `batch` (in sequences) or `rate` replaces the rule's. `shortest`: how many tokens
    the group's largest model reads, which limits the batch."""
    recipe = paper(params, flops, seq_len)
    small = flops < TABLE_FLOPS
    if batch is None and small:
        batch = max(1, int(min(batch_tokens(flops), shortest / LEAST_STEPS)) // seq_len)
    if rate is None and small:
        rate = Rate()
    change: dict[str, Any] = {} if batch is None else {"batch": batch}
    if small:
        change["min_lr_ratio"] = 0.0
    recipe = recipe.with_values({**change, **(values or {})})
    if rate is not None and "lr" not in (values or {}):
        recipe = recipe.with_values({"lr": rate.at(width, recipe.batch * seq_len)})
    return recipe
