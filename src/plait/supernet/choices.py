"""How much of each choice goes into a layer of a supernet, and which choice is better, by trying each of them.

Each layer's share of its choices is a Gumbel softmax (Jang et al. 2017, arXiv:1611.01144):

    m = softmax((logits + g) / temperature),   g = -log(-log(u)),   u uniform in (0, 1)

With noise g the largest entry of logits + g is choice i with probability softmax(logits)_i; the lower the temperature,
the nearer m comes to that choice alone.

Trying each: one network is drawn. In a few of its layers every choice is put in turn, all else as drawn, on the same
text. With the losses L_k of a layer's choices and their probabilities p,

    ∂ E[loss] / ∂ logit_k = p_k (L_k - Σ_j p_j L_j)

exactly, on average over the draws: it is the score-function gradient with the layer itself summed out. Every loss is
that of a plain network, as the weights know them. A soft mixture runs all choices at a part of their strength instead;
weights that were trained one choice at a time know no such network, and its gradient misjudges them.

Letters: L layers, K choices of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from plait.core.random_streams import seed_of


def noise(seed: int, step: int, shape: tuple[int, ...]) -> Tensor:
    """Gumbel noise of one step: the same whenever and wherever it is asked for."""
    stream = torch.Generator().manual_seed(seed_of(f"gumbel/{seed}/{step}"))
    exponential = torch.empty(shape, dtype=torch.float64).exponential_(generator=stream)
    return -exponential.log().float()


def mixture(logits_LK: Tensor, noise_LK: Tensor, temperature: float, sampling: str) -> Tensor:
    """m, its rows summing to one. Choices that a layer does not have are -inf in the logits and 0 here."""
    soft_LK = ((logits_LK + noise_LK.to(logits_LK.device)) / temperature).softmax(dim=1)
    if sampling == "soft":
        return soft_LK
    chosen_LK = torch.zeros_like(soft_LK).scatter(1, soft_LK.argmax(dim=1, keepdim=True), 1.0)
    # The difference is exactly zero: the values are those of the one choice, the gradient is the soft one's.
    return chosen_LK + (soft_LK - soft_LK.detach())


USUAL = 100  # gradients over which their usual size is taken


def layers_in_turn(seed: int, number: int, layers: int, at_once: int) -> list[int]:
    """The layers of the `number`-th comparison: each comes once, in random order, before any comes again."""
    turn, part = divmod(number, -(-layers // at_once))
    order = np.random.default_rng([seed, turn]).permutation(layers)
    return [int(at) for at in order[part * at_once : (part + 1) * at_once]]


def swap_gradient(
    path: Sequence[int],
    layers: Sequence[int],
    logits_LK: Tensor,
    loss_of: Callable[[list[int]], Tensor],
    prices_LK: Tensor,
) -> tuple[Tensor, Tensor]:
    """The loss of `path`, and the gradient of the expected loss and price in some layers' logits (0 in the others')."""
    own, present = loss_of(list(path)), torch.isfinite(logits_LK).tolist()
    gradient_LK = torch.zeros_like(logits_LK)
    for at in layers:
        p_K = logits_LK[at].softmax(dim=0)
        losses_K = torch.zeros_like(p_K)
        for k in (k for k, there in enumerate(present[at]) if there):
            losses_K[k] = own if k == path[at] else loss_of([*path[:at], k, *path[at + 1 :]])
        losses_K += prices_LK[at]
        gradient_LK[at] = p_K * (losses_K - (p_K * losses_K).sum())
    return own, gradient_LK


class EvenDescent(torch.optim.Optimizer):
    """Gradient descent in steps of `lr` times the gradient over its usual size, rows without a gradient left out.

    One size for the whole table: a layer whose choices hardly differ hardly moves. Adam, which gives every number a
    size of its own, would walk there at random.
    """

    def __init__(self, parameters: Sequence[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override] # nobody asks for a loss
        for group in self.param_groups:
            for table_LK in group["params"]:
                if table_LK.grad is None:
                    continue
                moved_L = table_LK.grad.ne(0).any(dim=1)
                if not moved_L.any():
                    continue
                state = self.state[table_LK]
                if not state:
                    state["seen"] = torch.zeros(())
                    state["square"] = torch.zeros((), device=table_LK.device)
                gradient = table_LK.grad[moved_L]
                state["seen"] += 1
                state["square"] += (gradient.square().mean() - state["square"]) / state["seen"].clamp(max=USUAL)
                pull = group["weight_decay"] * table_LK[moved_L]
                table_LK[moved_L] -= group["lr"] * (gradient / state["square"].sqrt() + pull)
