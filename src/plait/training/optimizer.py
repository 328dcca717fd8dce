"""Building a training's optimizer from its recipe, and taking optimizer steps.

`make_optimizer` sorts a model's parameters into groups and calls the builder that the recipe names (`OPTIMIZERS` in
`recipe`; LAMB and Muon have their own files). `update` and `update_on_device` take one step.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import Tensor, nn

from plait.mixers.mixer import Mixer
from plait.model.backbone import Block
from plait.training.distributed import is_sharded, whole
from plait.training.recipe import OPTIMIZERS, Groups, Recipe, splits_matrices
from plait.training.tensor_parallel import CutParameter

# ---- parameter groups and builders


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Two parameter groups, with and without weight decay; twice two for an optimizer that treats the matrices of the
    blocks in its own way (Muon)."""
    matrices = decayed_parameters(model)
    decayed = matrices - _names_in_mixers(model, recipe.no_weight_decay)
    hidden = matrices & _names_in_blocks(model) if splits_matrices(recipe.optimizer) else frozenset()
    named = dict(model.named_parameters())  # a tied matrix comes once
    groups: Groups = []
    for is_hidden in (True, False) if hidden else (False,):
        for decay in (True, False):
            names = [name for name in named if (name in hidden, name in decayed) == (is_hidden, decay)]
            group = {"params": [named[name] for name in names], "weight_decay": recipe.weight_decay if decay else 0.0}
            groups.append({**group, "hidden": is_hidden} if hidden else group)
    return OPTIMIZERS.load(recipe.optimizer)([group for group in groups if group["params"]], recipe)


def decayed_parameters(model: nn.Module) -> frozenset[str]:
    """Names of the parameters with weight decay: the matrices of linear maps, embeddings and experts, not norms,
    biases, gates and decay rates."""
    names = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            matrix = isinstance(module, (nn.Linear, nn.Embedding)) and name == "weight"
            if matrix or parameter.dim() == 3:  # experts are stacks of matrices
                names.add(f"{prefix}.{name}" if prefix else name)
    return frozenset(names)


def _names_in_blocks(model: nn.Module) -> set[str]:
    blocks = [(prefix, module) for prefix, module in model.named_modules() if isinstance(module, Block)]
    return {f"{prefix}.{name}" for prefix, block in blocks for name, _ in block.named_parameters()}


def _names_in_mixers(model: nn.Module, mixers: tuple[str, ...]) -> set[str]:
    return {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, Mixer) and module.options.name in mixers
        for name, _ in module.named_parameters()
    }


def adamw(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    betas, fused = (recipe.beta1, recipe.beta2), _can_be_fused(groups)
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=betas, eps=recipe.eps, fused=fused)


def adam(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    betas, fused = (recipe.beta1, recipe.beta2), _can_be_fused(groups)
    return torch.optim.Adam(groups, lr=recipe.lr, betas=betas, eps=recipe.eps, fused=fused)


def _can_be_fused(groups: Groups) -> bool | None:
    """True (one kernel for the whole update) if all parameters are on GPUs and none is sharded; None: torch's
    choice."""
    parameters = [p for group in groups for p in group["params"]]
    return all(p.is_cuda and not is_sharded(p) for p in parameters) or None


def sgd(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.beta1)


def rmsprop(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(groups, lr=recipe.lr, alpha=recipe.beta2, eps=recipe.eps)


def adagrad(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(groups, lr=recipe.lr, eps=recipe.eps)


# ---- one step


def set_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    for group in optimizer.param_groups:
        group["lr"] = lr


def gradient_norm(parameters: Iterable[Tensor]) -> Tensor:
    """The norm of the whole model's gradient: parts of split parameters are summed over processes, others count
    once."""
    pairs = [(p, p.grad) for p in parameters if p.grad is not None]
    cut = [p for p, _ in pairs if isinstance(p, CutParameter)]
    uncut = torch.nn.utils.get_total_norm([gradient for p, gradient in pairs if not isinstance(p, CutParameter)])
    if not cut:
        return uncut
    squared = torch.nn.utils.get_total_norm([p.grad for p in cut if p.grad is not None]).square()
    torch.distributed.all_reduce(squared, group=cut[0].among.tensor_group)
    return (squared + uncut.square()).sqrt()


def update(
    optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], clip: float, loss: float
) -> tuple[float, bool]:
    """Take a step with the current gradients, clipped to norm `clip` (0: no clipping), and clear them. The step is
    skipped if loss or gradient norm is not finite. Returns the norm, and whether the step was taken."""
    # The norm is needed even without clipping: it shows whether the gradient is finite.
    parameters = list(parameters)
    length = gradient_norm(parameters)
    torch.nn.utils.clip_grads_with_norm_(parameters, clip or math.inf, length)
    norm = float(whole(length))
    finite = math.isfinite(norm) and math.isfinite(loss)
    if finite:
        optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm, finite


def update_on_device(
    optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], clip: float, loss: Tensor
) -> tuple[Tensor, Tensor]:
    """`update` without waiting for a GPU: the results are tensors on it. Only fused optimizers can skip a step on the
    device; for others this waits and decides on the host."""
    if not loss.is_cuda or not getattr(optimizer, "_step_supports_amp_scaling", False):
        norm, stepped = update(optimizer, parameters, clip, float(loss))
        return torch.tensor(norm), torch.tensor(stepped)
    length = gradient_norm(parameters)
    finite = length.isfinite() & loss.isfinite()
    # As with a gradient scaler: gradients are divided by `grad_scale`, and the step is skipped if `found_inf` is 1.
    optimizer.grad_scale = ((length + 1e-6) / clip).clamp(min=1.0) if clip else None  # type: ignore[attr-defined]
    optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return length, finite
