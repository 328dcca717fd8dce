"""LAMB (You et al. 2020, arXiv:1904.00962, Algorithm 2): Adam whose step is as long as the weights it changes.

    r = m̂ / (√v̂ + ε) + wd · p,      p ← p − lr · φ(‖p‖) / ‖r‖ · r,      φ(z) = z

The trust ratio φ(‖p‖) / ‖r‖ is every parameter tensor's, with weight decay or without; it is 1 where either norm is
zero, for such a tensor could not move. Published trainings differ in three places, each an argument here:

  lamb      Algorithm 2 as printed: m̂ and v̂ are bias-corrected.
  lamb-xl   NVIDIA's public Transformer-XL training, which LTS builds on and PAR's settings are those of: no bias
            correction (m and v themselves), φ(z) = min(z, 10). Without weight decay the ratio cancels what the
            correction would do; φ slows large embedding tables. (Its + ε behind ‖r‖ is left out: below 1e-6 of a step.)
  nvlamb    NVLAMB (Sreenivas et al. 2019), PAR's for BERT: Algorithm 2 after the gradient of the whole model has been
            scaled down to a norm of 1 where it is longer.

From a recipe to a torch optimizer over the right groups of parameters; and the update that training loops share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from plait.mixers.mixer import Mixer
from plait.model.backbone import Block
from plait.training.ensemble_step import decayed_parameters
from plait.training.optimizers import OPTIMIZERS, splits_matrices
from plait.training.recipe import Recipe

if TYPE_CHECKING:
    from plait.training.recipe import Recipe


#: φ's upper bound in the Transformer-XL training code.
LARGEST_NORM = 10.0


class Lamb(torch.optim.Optimizer):
    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
        *,
        bias_correction: bool = True,
        largest_norm: float = math.inf,
        max_grad_norm: float = math.inf,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})
        self.bias_correction, self.largest_norm, self.max_grad_norm = bias_correction, largest_norm, max_grad_norm

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        scale = self._gradient_scale()
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, p.grad if scale is None else p.grad * scale, group)

    def _gradient_scale(self) -> Tensor | None:
        """What the whole gradient is multiplied by, so that it is at most `max_grad_norm` long."""
        if math.isinf(self.max_grad_norm):
            return None
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        whole = getattr(norm, "full_tensor", None)  # of sharded gradients
        norm = norm if whole is None else whole()
        return self.max_grad_norm / norm.clamp(min=self.max_grad_norm)

    def _update(self, p: Tensor, grad: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        beta1, beta2 = group["betas"]
        state["step"] += 1
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(grad, 1 - beta1)
        square.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)
        seen = int(state["step"]) if self.bias_correction else math.inf
        r = (mean / (1 - beta1**seen)) / ((square / (1 - beta2**seen)).sqrt() + group["eps"])
        r.add_(p, alpha=group["weight_decay"])
        # Norms of sharded parameters are those of the whole: torch reduces them over the processes.
        size, length = torch.linalg.vector_norm(p), torch.linalg.vector_norm(r)
        ratio = torch.where((size > 0) & (length > 0), size.clamp(max=self.largest_norm) / length, 1.0)
        p.sub_(group["lr"] * ratio * r)


def lamb(groups: list[dict[str, Any]], recipe: Recipe) -> Lamb:
    return Lamb(groups, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps)


def lamb_xl(groups: list[dict[str, Any]], recipe: Recipe) -> Lamb:
    betas = (recipe.beta1, recipe.beta2)
    return Lamb(groups, recipe.lr, betas, recipe.eps, bias_correction=False, largest_norm=LARGEST_NORM)


def nvlamb(groups: list[dict[str, Any]], recipe: Recipe) -> Lamb:
    return Lamb(groups, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps, max_grad_norm=1.0)


Groups = list[dict[str, Any]]


def make_optimizer(model: nn.Module, recipe: Recipe) -> torch.optim.Optimizer:
    """Two groups: what weight decay is for, and the rest; with an optimizer that treats the blocks' matrices in its own
    way, twice two."""
    matrices = decayed_parameters(model)
    decayed = matrices - _of_mixers(model, recipe.no_weight_decay)
    hidden = matrices & _of_blocks(model) if splits_matrices(recipe.optimizer) else frozenset()
    named = dict(model.named_parameters())  # a tied matrix comes once
    groups: Groups = []
    for is_hidden in (True, False) if hidden else (False,):
        for decay in (True, False):
            names = [name for name in named if (name in hidden, name in decayed) == (is_hidden, decay)]
            group = {"params": [named[name] for name in names], "weight_decay": recipe.weight_decay if decay else 0.0}
            groups.append({**group, "hidden": is_hidden} if hidden else group)
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


def update_on_device(
    optimizer: torch.optim.Optimizer, parameters: Iterable[Tensor], clip: float, loss: Tensor
) -> tuple[Tensor, Tensor]:
    """The same as `update` without waiting for a GPU: norm and whether it was made are tensors there. Only fused
    optimizers can leave an update out by themselves; another one's is decided here, after waiting."""
    if not loss.is_cuda or not getattr(optimizer, "_step_supports_amp_scaling", False):
        length, made = update(optimizer, parameters, clip, float(loss))
        return torch.tensor(length), torch.tensor(made)
    norm = torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
    finite = norm.isfinite() & loss.isfinite()
    # What a gradient scaler would set: gradients are divided by the one, and nothing is changed where the other is 1.
    optimizer.grad_scale = ((norm + 1e-6) / clip).clamp(min=1.0) if clip else None  # type: ignore[attr-defined]
    optimizer.found_inf = (~finite).float()  # type: ignore[attr-defined]
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return norm, finite


def adamw(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    betas, fused = (recipe.beta1, recipe.beta2), _on_gpu(groups)
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=betas, eps=recipe.eps, fused=fused)


def adam(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    betas, fused = (recipe.beta1, recipe.beta2), _on_gpu(groups)
    return torch.optim.Adam(groups, lr=recipe.lr, betas=betas, eps=recipe.eps, fused=fused)


def _on_gpu(groups: Groups) -> bool | None:
    """One kernel for the whole update, where all parameters are on GPUs and whole; else torch's choice."""
    everything = [p for group in groups for p in group["params"]]
    return all(p.is_cuda and not hasattr(p, "full_tensor") for p in everything) or None


def sgd(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=recipe.lr, momentum=recipe.beta1)


def rmsprop(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.RMSprop(groups, lr=recipe.lr, alpha=recipe.beta2, eps=recipe.eps)


def adagrad(groups: Groups, recipe: Recipe) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(groups, lr=recipe.lr, eps=recipe.eps)


def _of_blocks(model: nn.Module) -> set[str]:
    blocks = [(prefix, module) for prefix, module in model.named_modules() if isinstance(module, Block)]
    return {f"{prefix}.{name}" for prefix, block in blocks for name, _ in block.named_parameters()}


def _of_mixers(model: nn.Module, names: tuple[str, ...]) -> set[str]:
    return {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        if isinstance(module, Mixer) and module.options.name in names
        for name, _ in module.named_parameters()
    }
