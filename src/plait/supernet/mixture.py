"""A supernet's layer, which mixes several choices, and the gradient of the architecture logits.

A layer computes X^l = Σ_i m_i F_i(X^(l-1)), where one F may be the identity (eq. 5 and 6 of arXiv:2009.04534). The
weights m of its choices are a Gumbel softmax (Jang et al. 2017, arXiv:1611.01144):

    m = softmax((logits + g) / temperature),   g = -log(-log(u)),   u uniform in (0, 1)

The largest entry of logits + g is choice i with probability softmax(logits)_i; the lower the temperature, the closer m
is to that choice alone.

`swap_gradient` needs no mixture. It samples one network, and in a few of its layers tries every choice in turn, with
all other layers as sampled and on the same text. With the losses L_k of a layer's choices and their probabilities p,

    ∂ E[loss] / ∂ logit_k = p_k (L_k - Σ_j p_j L_j)

holds exactly in expectation: it is the score-function gradient with the layer itself summed out. Every loss is that of
a plain network, the only kind the weights were trained for when paths are sampled. A soft mixture would run all
choices at reduced strength, which such weights have never seen, and its gradient would be misleading.

Letters: B batch, T time, D width, L layers, K choices of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

import numpy as np
import torch
from torch import Tensor, nn

from plait.mixers.mixer import Loan, State
from plait.mixers.options import MixerOptions
from plait.model.backbone import Block
from plait.model.language_model import seed_of
from plait.spec import Header

Extra = TypeVar("Extra")
Result = TypeVar("Result")


class Mixture(nn.Module):
    """Takes the place of a `Block`. Runs the choice `path`, or all choices weighted by `weights_K`; both attributes are
    set before a forward pass. The choice None is the identity. All layers of a supernet share one `loan`, into which
    the `first` layer puts its input, the embeddings, for choices that read them.
    """

    def __init__(
        self, header: Header, choices: Sequence[MixerOptions | None], loan: Loan | None = None, *, first: bool = False
    ) -> None:
        super().__init__()
        self.choices = tuple(choices)
        self.loan: Loan = {} if loan is None else loan
        self.first = first
        self.blocks = nn.ModuleDict(
            {str(k): Block(header, options) for k, options in enumerate(choices) if options is not None}
        )
        self.path: int | None = 0
        self.weights_K: Tensor | None = None
        # For comparing networks that differ only in later layers: store this layer's output, or return the stored one.
        self.keeps, self.replays = False, False
        self.kept: Any = None

    @property
    def each_block(self) -> list[Block]:
        return [self._block(key) for key in self.blocks]

    def forward(self, x_BTD: Tensor, pad_B: Tensor | None = None) -> Tensor:
        return self._once(lambda: self._mixed(x_BTD, lambda _, block: (self._run(block, x_BTD, pad_B), None))[0])

    def forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        return self._once(lambda: self._forward_with_loss(x_BTD))

    def _forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        out_BTD, losses = self._mixed(x_BTD, lambda _, block: self._run_with_loss(block, x_BTD))
        # A layer's auxiliary loss (load balancing) has the same weight as the layer.
        own = [loss if self.weights_K is None else self.weights_K[k] * loss for k, loss in losses if loss is not None]
        return out_BTD, sum(own[1:], own[0]) if own else None

    def init_memory(self, batch: int, tokens: int) -> State:
        states = {key: self._block(key).init_memory(batch, tokens) for key in self.blocks}
        return {f"{key}.{name}": value for key, state in states.items() for name, value in state.items()}

    def extend(self, x_BTD: Tensor, memory: State) -> tuple[Tensor, State]:
        """Segment memory is updated in every choice, also in those that did not run: they may run next time."""
        return self._once(lambda: self._extend(x_BTD, memory))

    def _extend(self, x_BTD: Tensor, memory: State) -> tuple[Tensor, State]:
        own: dict[str, State] = {key: {} for key in self.blocks}
        for name, value in memory.items():
            key, _, inner = name.partition(".")
            own[key][inner] = value
        out_BTD, ran = self._mixed(x_BTD, lambda key, block: block.extend(x_BTD, own[key]))
        after = {str(k): state for k, state in ran}
        for key in own.keys() - after.keys():
            after[key] = self._block(key).remember(x_BTD, own[key])
        return out_BTD, {f"{key}.{name}": value for key, state in after.items() for name, value in state.items()}

    def _run(self, block: Block, x_BTD: Tensor, pad_B: Tensor | None) -> Tensor:
        if block.mixer.options.reads:
            return block.connected(x_BTD, None, self.loan, pad_B)[0]
        out_BTD: Tensor = block(x_BTD, pad_B)
        return out_BTD

    def _run_with_loss(self, block: Block, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        if block.mixer.options.reads:
            return self._run(block, x_BTD, None), None
        return block.forward_with_loss(x_BTD)

    def _once(self, run: Callable[[], Result]) -> Result:
        if self.replays:
            return cast("Result", self.kept)
        result = run()
        if self.keeps:
            self.kept = result
        return result

    def _mixed(
        self, x_BTD: Tensor, run: Callable[[str, Block], tuple[Tensor, Extra]]
    ) -> tuple[Tensor, list[tuple[int, Extra]]]:
        """The layer's output, and the second result of every choice that ran, with the choice's number."""
        if self.first:
            self.loan["embedding"] = x_BTD
        if self.path is not None:
            if self.choices[self.path] is None:
                return self._straight_through(self.path, x_BTD), []
            out_BTD, extra = run(str(self.path), self._block(str(self.path)))
            return self._straight_through(self.path, out_BTD), [(self.path, extra)]
        assert self.weights_K is not None
        total_BTD: Tensor | None = None
        extras: list[tuple[int, Extra]] = []
        for k, options in enumerate(self.choices):
            out_BTD = x_BTD
            if options is not None:
                out_BTD, extra = run(str(k), self._block(str(k)))
                extras.append((k, extra))
            part_BTD = self.weights_K[k].to(out_BTD.dtype) * out_BTD
            total_BTD = part_BTD if total_BTD is None else total_BTD + part_BTD
        assert total_BTD is not None
        return total_BTD, extras

    def _straight_through(self, k: int, out_BTD: Tensor) -> Tensor:
        """Multiply by the choice's weight, which is 1, so that the weight gets a gradient."""
        if self.weights_K is None or not self.weights_K.requires_grad:
            return out_BTD
        return out_BTD * self.weights_K[k].to(out_BTD.dtype)

    def _block(self, key: str) -> Block:
        block = self.blocks[key]
        assert isinstance(block, Block)
        return block


def noise(seed: int, step: int, shape: tuple[int, ...]) -> Tensor:
    """Gumbel noise of one step, a function of seed and step alone."""
    stream = torch.Generator().manual_seed(seed_of(f"gumbel/{seed}/{step}"))
    exponential = torch.empty(shape, dtype=torch.float64).exponential_(generator=stream)
    return -exponential.log().float()


def mixture(logits_LK: Tensor, noise_LK: Tensor, temperature: float, sampling: str) -> Tensor:
    """m, whose rows sum to one. Choices that a layer does not have are -inf in the logits and 0 in m."""
    soft_LK = ((logits_LK + noise_LK.to(logits_LK.device)) / temperature).softmax(dim=1)
    if sampling == "soft":
        return soft_LK
    chosen_LK = torch.zeros_like(soft_LK).scatter(1, soft_LK.argmax(dim=1, keepdim=True), 1.0)
    # The difference is exactly zero: values are those of the one choice, gradients those of the soft mixture.
    return chosen_LK + (soft_LK - soft_LK.detach())


USUAL = 100  # gradients over which `EvenDescent` averages squares


def layers_in_turn(seed: int, number: int, layers: int, at_once: int) -> list[int]:
    """The layers of the `number`-th comparison. Every layer is used once, in random order, before any is repeated."""
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
    """The loss of `path`, and the gradient of expected loss plus price with respect to the logits of some layers (0 for
    all other layers)."""
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
    """Gradient descent with steps of `lr` times the gradient divided by its root mean square over recent steps; rows
    without a gradient do not move.

    The root mean square is that of the whole table, so a layer whose choices make little difference moves little. Adam
    scales every entry separately and would make such layers walk at random.
    """

    def __init__(self, parameters: Sequence[Tensor], lr: float, weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override] # no loss is returned
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
