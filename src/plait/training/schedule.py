"""The learning rate over a run, as a share of its peak.

Linear warm-up from zero (the first step has rate 0), then a cosine, a line, or nothing; or warm-up, a stable rate and a
decay at the end (WSD: Hu et al. 2024, arXiv:2404.06395; the decay as 1 − √ of its progress: Hägele et al. 2024,
arXiv:2405.18392). A pure function of the step, so that a run resumed anywhere has the rate it would have had.
"""

from __future__ import annotations

import math

from plait.training.recipe import Recipe


def warmup_steps(recipe: Recipe, steps: int) -> int:
    """A share of the run when below 1, else a number of steps, never more than the run has."""
    asked = recipe.warmup * steps if recipe.warmup < 1 else recipe.warmup
    return min(steps, round(asked))


def decay_steps(recipe: Recipe, steps: int) -> int:
    """Of a WSD run: how many of its steps, the last ones, decay."""
    return max(1, round(recipe.decay * steps))


def rate(recipe: Recipe, step: int, steps: int) -> float:
    """The share of the peak at `step`, counted from 0, of a run of `steps`."""
    warmup = warmup_steps(recipe, steps)
    if step < warmup:
        return step / warmup
    if recipe.schedule == "constant":
        return 1.0
    if recipe.schedule == "wsd":
        decaying = decay_steps(recipe, steps)
        into = max(0, step - (steps - decaying)) / decaying
        return recipe.min_lr_ratio + (1 - recipe.min_lr_ratio) * (1 - math.sqrt(into))
    progress = (step - warmup) / max(1, steps - warmup)
    fallen = 0.5 * (1 + math.cos(math.pi * progress)) if recipe.schedule == "cosine" else 1 - progress
    return recipe.min_lr_ratio + (1 - recipe.min_lr_ratio) * fallen
