"""AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) on stacked parameters: every member has its own learning rate
and weight decay.

    m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²,   p ← p − lr (m̂ / (√v̂ + ε) + wd p)

as `torch.optim.AdamW` computes it. Weight decay is for the matrices of linear maps, embeddings and experts; norms,
biases, gates and decay rates are left to themselves.

Letters: M members.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class AdamW:
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8

    def update(
        self,
        params: Tensors,
        grads: Tensors,
        first: Tensors,
        second: Tensors,
        step: Tensor,
        lr_M: Tensor,
        decay_M: Tensor,
        decayed: frozenset[str],
    ) -> None:
        """One step, in place. `step` counts from 1 and is a tensor, so that a captured graph can advance it."""
        beta1, beta2 = self.betas
        correct1, correct2 = 1 - beta1**step, (1 - beta2**step).sqrt()
        for name, p in params.items():
            g, m, v = grads[name].to(p.dtype), first[name], second[name]
            shape = (-1,) + (1,) * (p.dim() - 1)
            rate = lr_M.view(shape)
            if name in decayed:
                p.mul_(1 - rate * decay_M.view(shape))
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            p.sub_((rate / correct1) * m / (v.sqrt() / correct2 + self.eps))


def decayed_parameters(model: nn.Module) -> frozenset[str]:
    """Names of the parameters that weight decay is for."""
    names = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            matrix = isinstance(module, (nn.Linear, nn.Embedding)) and name == "weight"
            if matrix or parameter.dim() == 3:  # experts are stacks of matrices
                names.add(f"{prefix}.{name}" if prefix else name)
    return frozenset(names)


def zeros_like(params: Tensors) -> Tensors:
    return {name: torch.zeros_like(p) for name, p in params.items()}
