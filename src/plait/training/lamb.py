"""LAMB (You et al. 2020, arXiv:1904.00962, Algorithm 2): Adam whose step is scaled to the size of the weights.

    r = m̂ / (√v̂ + ε) + wd · p,      p ← p − lr · φ(‖p‖) / ‖r‖ · r,      φ(z) = z

Every parameter tensor has its own trust ratio φ(‖p‖) / ‖r‖, with weight decay or without. It is 1 if either norm is
zero, since such a tensor could not move otherwise. Published trainings differ in three points, each an argument here:

  lamb      Algorithm 2 as printed: m̂ and v̂ are bias-corrected.
  lamb-xl   NVIDIA's public Transformer-XL training, which LTS builds on and whose settings PAR uses: no bias correction
            (m and v themselves), φ(z) = min(z, 10). Without weight decay the ratio cancels what the correction would
            do; φ slows large embedding tables. (Its + ε behind ‖r‖ is left out: it changes a step by less than 1e-6.)
  nvlamb    NVLAMB (Sreenivas et al. 2019), used by PAR for BERT: Algorithm 2, after clipping the gradient of the whole
            model to norm 1.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from plait.training.distributed import whole

if TYPE_CHECKING:
    from plait.training.recipe import Groups, Recipe

#: φ's upper bound in the Transformer-XL training code.
LARGEST_NORM = 10.0


class Lamb(torch.optim.Optimizer):
    """`largest_norm` is the upper bound of φ, `max_grad_norm` what the model's whole gradient is clipped to."""

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
        """The factor that clips the whole model's gradient to `max_grad_norm`; None: no clipping."""
        if math.isinf(self.max_grad_norm):
            return None
        grads = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(grads)
        return self.max_grad_norm / whole(norm).clamp(min=self.max_grad_norm)

    def _update(self, p: Tensor, grad: Tensor, group: Mapping[str, Any]) -> None:
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
        # Also for sharded parameters these are the norms of whole tensors: torch reduces them over the processes.
        size, length = torch.linalg.vector_norm(p), torch.linalg.vector_norm(r)
        ratio = torch.where((size > 0) & (length > 0), size.clamp(max=self.largest_norm) / length, 1.0)
        p.sub_(group["lr"] * ratio * r)


def lamb(groups: Groups, recipe: Recipe) -> Lamb:
    return Lamb(groups, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps)


def lamb_xl(groups: Groups, recipe: Recipe) -> Lamb:
    betas = (recipe.beta1, recipe.beta2)
    return Lamb(groups, recipe.lr, betas, recipe.eps, bias_correction=False, largest_norm=LARGEST_NORM)


def nvlamb(groups: Groups, recipe: Recipe) -> Lamb:
    return Lamb(groups, lr=recipe.lr, betas=(recipe.beta1, recipe.beta2), eps=recipe.eps, max_grad_norm=1.0)
