"""LAMB (You et al. 2020, arXiv:1904.00962, Algorithm 2): Adam whose step is as long as a share of the weights.

    r = m̂ / (√v̂ + ε) + wd · p,      p ← p − lr · (‖p‖ / ‖r‖) · r

The ratio of norms is 1 for parameters that are not decayed (biases, norms), and where either norm is zero.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class Lamb(torch.optim.Optimizer):
    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        assert closure is None
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self._update(p, group)

    def _update(self, p: Tensor, group: dict[str, Any]) -> None:
        state = self.state[p]
        if not state:
            state["step"] = torch.zeros(())
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(p), torch.zeros_like(p)
        beta1, beta2 = group["betas"]
        state["step"] += 1
        step = int(state["step"])
        mean, square = state["exp_avg"], state["exp_avg_sq"]
        mean.lerp_(p.grad, 1 - beta1)
        square.mul_(beta2).addcmul_(p.grad, p.grad, value=1 - beta2)
        r = (mean / (1 - beta1**step)) / ((square / (1 - beta2**step)).sqrt() + group["eps"])
        if not group["weight_decay"]:
            p.sub_(r, alpha=group["lr"])
            return
        r.add_(p, alpha=group["weight_decay"])
        # Norms of sharded parameters are those of the whole: torch reduces them over the processes.
        size, length = torch.linalg.vector_norm(p), torch.linalg.vector_norm(r)
        trust = torch.where((size > 0) & (length > 0), size / length, 1.0)
        p.sub_(group["lr"] * trust * r)
