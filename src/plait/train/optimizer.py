"""From a recipe to a torch optimizer over the right groups of parameters."""

from __future__ import annotations

import torch
from torch import nn

from plait.mixers.mixer import Mixer
from plait.train.lamb import Lamb
from plait.train.recipe import Recipe
from plait.train.stacked_adamw import decayed_parameters


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Two groups: what weight decay is for, and the rest."""
    decayed = decayed_parameters(model) - _of_mixers(model, recipe.undecayed)
    named = dict(model.named_parameters())  # a tied matrix comes once
    groups = [
        {"params": [p for name, p in named.items() if name in decayed], "weight_decay": recipe.weight_decay},
        {"params": [p for name, p in named.items() if name not in decayed], "weight_decay": 0.0},
    ]
    groups = [group for group in groups if group["params"]]
    betas = (recipe.beta1, recipe.beta2)
    if recipe.optimizer == "lamb":
        return Lamb(groups, lr=recipe.lr, betas=betas, eps=recipe.eps)
    kind = torch.optim.AdamW if recipe.optimizer == "adamw" else torch.optim.Adam
    return kind(groups, lr=recipe.lr, betas=betas, eps=recipe.eps)


def _of_mixers(model: nn.Module, names: tuple[str, ...]) -> set[str]:
    return {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, Mixer) and module.options.name in names
        for name, _ in module.named_parameters()
    }
