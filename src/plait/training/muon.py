"""Muon (Jordan et al. 2024, kellerjordan.github.io/posts/muon) for the hidden matrices, AdamW for everything else.

The momentum of a matrix is replaced by the nearest matrix whose singular values are all about one:

    M ← μ M + (1 − μ) G,   U = μ M + (1 − μ) G (Nesterov),   W ← (1 − lr · wd) W − lr · 0.2 √max(rows, cols) · O(U)

O(U) = V₁V₂ᵀ of U = V₁ΣV₂ᵀ, approximately: five steps of a Newton–Schulz iteration with the coefficients of Jordan et
al., which brings singular values between 0.7 and 1.2 using only matrix products (bf16 on a GPU). The factor 0.2
√max(rows, cols) makes an update about as large as AdamW's, so that one learning rate and one weight decay work for both
(Liu et al. 2025, arXiv:2502.16982, §2.2). Matrices of one shape are orthogonalised together; the experts of a layer
already form such a stack.

Letters: K matrices of one shape, R rows, C columns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from plait.core.errors import UserError
from plait.ops.paths import precision_on

if TYPE_CHECKING:
    from plait.training.recipe import Groups, Recipe

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
ITERATIONS = 5
ADAM_RMS = 0.2  # root mean square of AdamW's usual updates, in units of the learning rate


class Muon(torch.optim.Optimizer):
    """Groups with `hidden=True` hold matrices, or stacks of them; the other groups are AdamW's."""

    #: On a GPU it skips an update if `found_inf` is 1 and divides gradients by `grad_scale`, as fused optimizers do.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        momentum: float = 0.95,
        betas: tuple[float, float] = (0.9, 0.95),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "momentum": momentum, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {**defaults, "hidden": False})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            if group["hidden"]:
                self._orthogonalised(params, group)
            elif params:
                self._adamw(params, group)

    def _orthogonalised(self, params: list[Tensor], group: Mapping[str, Any]) -> None:
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        finite: Tensor | float = 1.0 if found_inf is None else 1 - found_inf
        alike: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        for p in params:
            assert p.grad is not None
            grad = p.grad if scale is None else p.grad / scale
            grad = grad if found_inf is None else grad.where(found_inf == 0, 0.0)
            state = self.state[p]
            if not state:
                state["momentum"] = torch.zeros_like(p)
            mean: Tensor = state["momentum"]
            mean.lerp_(grad, (1 - group["momentum"]) * finite)
            alike[p.shape[-2:]].append((p, grad.lerp(mean, group["momentum"])))
        for (rows, columns), pairs in alike.items():
            stacks = [update.view(-1, rows, columns) for _, update in pairs]
            whole = orthogonal(torch.cat(stacks)).split([len(stack) for stack in stacks])
            step = group["lr"] * ADAM_RMS * max(rows, columns) ** 0.5
            for (p, _), update in zip(pairs, whole, strict=True):
                p.mul_(1 - group["lr"] * group["weight_decay"] * finite)
                p.sub_(update.view(p.shape).to(p.dtype) * (step * finite))

    def _adamw(self, params: list[Tensor], group: Mapping[str, Any]) -> None:
        for p in params:
            state = self.state[p]
            if not state:
                # A fused kernel counts on the device.
                state["step"] = torch.zeros((), device=p.device if p.is_cuda else None)
                state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        states = [self.state[p] for p in params]
        fused = all(p.is_cuda for p in params)
        adamw(
            params,
            [p.grad for p in params if p.grad is not None],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            fused=fused,
            grad_scale=getattr(self, "grad_scale", None) if fused else None,
            found_inf=getattr(self, "found_inf", None) if fused else None,
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            maximize=False,
        )


def orthogonal(x_KRC: Tensor) -> Tensor:
    """Approximately orthogonalise each matrix (singular values near one); in bf16 on a GPU."""
    rows, columns = x_KRC.shape[-2:]
    a, b, c = COEFFICIENTS
    x = x_KRC.to(torch.bfloat16) if precision_on(x_KRC.device) == "bf16" else x_KRC
    x = x.mT if rows > columns else x  # the smaller product
    x = x / (torch.linalg.matrix_norm(x, keepdim=True) + 1e-7)
    for _ in range(ITERATIONS):
        square = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(square, square, square, beta=b, alpha=c), x, beta=a)
    return x.mT if rows > columns else x


def muon(groups: Groups, recipe: Recipe) -> Muon:
    if any(hasattr(p, "full_tensor") for group in groups for p in group["params"]):
        raise UserError("optimizer=muon needs whole matrices in every process: train with --sharding ddp.")
    return Muon(groups, recipe.lr, recipe.momentum, (recipe.beta1, recipe.beta2), recipe.eps)
