"""Batch size and learning rate of planned runs: the batch depends on the budget, the rate on the width.

Budgets that MAD's tables cover follow its rules (`papers.recipes`: Tables C.1 and C.2). Smaller budgets follow these:

batch   TABLE_BATCH · (C / TABLE_FLOPS)^(1/3) tokens, rounded to a power of two: the critical batch grows with the
        number of tokens, which grows as C^(1/2) (McCandlish et al. 2018). All sizes of a group have the same batch: one
        that grows with the size biases the group's best size downward (Poli et al. 2024, Figure C.1). The batch is
        small enough for the group's shortest run to have LEAST_STEPS steps: shorter runs do not follow the law
decay   the cosine ends at 0: the tables' tenth of the peak would leave a short training above the loss it can reach
rate    found at one width and transferred as 1/d (Yang et al. 2022: a matrix of d inputs moves d times as far at the
        same rate). On builtin:language the best of 1, 2, 4 … 64e-3 after 300 steps is 32e-3 at width 16, 8e-3 at 64 and
        4e-3 at 128: 0.512 / d each time (attn swiglu, 2 blocks, 32 × 32 tokens per step). On bytes of Python it is
        0.256 / d from width 32 to 192 for attention at 8k and 12k tokens per step, but 0.512 / d or more at 32k: the
        batch counts as well (benchmarks/results/2026-11-16-h200-scaling.md), which the planner warns of
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from plait.core.errors import UserError
from plait.training.recipe import Recipe

TABLE_FLOPS, TABLE_BATCH = 4e18, 2**19
RATE_POWER = -1.0
#: The learning rate, and the width it was found at, of models far smaller than the tables'.
SMALL_RATE, SMALL_WIDTH = 8e-3, 64
LEAST_STEPS = 500  # runs with fewer lie above the law of longer ones

#: Active parameters, FLOPs and tokens of a sequence → a recipe.
PaperRule = Callable[[float, float, int], Recipe]


@dataclass(frozen=True)
class Rate:
    """A learning rate and the width at which it was found to be the best."""

    value: float = SMALL_RATE
    width: int = SMALL_WIDTH

    def at(self, width: int) -> float:
        return float(self.value * (width / self.width) ** RATE_POWER)

    @classmethod
    def read(cls, text: str) -> Rate:
        """`8e-3`, at width 64, or `8e-3@128`."""
        value, _, width = text.partition("@")
        try:
            rate = cls(float(value), int(width) if width else SMALL_WIDTH)
        except ValueError:
            rate = cls(math.nan)
        if not (0 < rate.value < math.inf and rate.width >= 1):
            raise UserError(f"--lr {text}: write a rate, or a rate and the width it was found at: 8e-3@64.")
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
    if rate is not None:
        change["lr"] = rate.at(width)
    return recipe.with_values({**change, **(values or {})})
