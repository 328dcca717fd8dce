"""From a recipe to a torch optimizer over the right groups of parameters; and the update that training loops share."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from plait.mixers.mixer import Mixer
from plait.training.ensemble_step import decayed_parameters
from plait.training.optimizers import OPTIMIZERS
from plait.training.recipe import Recipe

Groups = list[dict[str, Any]]


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Two groups: what weight decay is for, and the rest."""
    decayed = decayed_parameters(model) - _of_mixers(model, recipe.no_weight_decay)
    named = dict(model.named_parameters())  # a tied matrix comes once
    groups: Groups = [
        {"params": [p for name, p in named.items() if name in decayed], "weight_decay": recipe.weight_decay},
        {"params": [p for name, p in named.items() if name not in decayed], "weight_decay": 0.0},
    ]
    return OPTIMIZERS.load(recipe.optimizer)([group for group in groups if group["params"]], recipe)


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def update(
    optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], clip: float, loss: float
) -> tuple[float, bool]:
    """One update from the gradients that lie ready, clipped to a norm of `clip` (0: not at all) and then forgotten.
    It is left out where loss or norm is not finite; returns the norm, and whether it was made."""
    # With no limit the norm is still wanted: it tells whether the step is finite.
    norm = torch.nn.utils.clip_grad_norm_(parameters, clip or math.inf)
    whole = getattr(norm, "full_tensor", None)  # of sharded gradients
    length = float(norm if whole is None else whole())
    finite = math.isfinite(length) and math.isfinite(loss)
    if finite:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return length, finite


def adamw(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps)


def adam(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.Adam(groups, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps)


def sgd(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.beta1)


def rmsprop(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(groups, lr=recipe.lr, alpha=recipe.beta2, eps=recipe.eps)


def adagrad(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(groups, lr=recipe.lr, eps=recipe.eps)


def _of_mixers(model: nn.Module, names: tuple[str, ...]) -> set[str]:
    return {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, Mixer) and module.options.name in names
        for name, _ in module.named_parameters()
    }
