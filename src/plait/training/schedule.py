"""The learning rate over a run, as a share of its peak.

Linear warm-up from zero (the first step has rate 0), then a cosine, a line, or nothing. A pure function of the step, so
that a run resumed anywhere has the rate it would have had.
"""

from __future__ import annotations

import math

from plait.training.recipe import Recipe


def warmup_steps(recipe: Recipe, steps: int) -> int:
    """A share of the run when below 1, else a number of steps, never more than the run has."""
    asked = recipe.warmup * steps if recipe.warmup < 1 else recipe.warmup
    return min(steps, round(asked))


def rate(recipe: Recipe, step: int, steps: int) -> float:
    """The share of the peak at `step`, counted from 0, of a run of `steps`."""
    warmup = warmup_steps(recipe, steps)
    if step < warmup:
        return step / warmup
    if recipe.schedule == "constant":
        return 1.0
    progress = (step - warmup) / max(1, steps - warmup)
    fallen = 0.5 * (1 + math.cos(math.pi * progress)) if recipe.schedule == "cosine" else 1 - progress
    return recipe.min_lr_ratio + (1 - recipe.min_lr_ratio) * fallen
