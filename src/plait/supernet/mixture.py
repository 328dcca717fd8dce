"""A layer that is several layers at once: X^l = Σ_i m_i F_i(X^(l-1)), where one F may be "nothing" (eq. 5 and 6 of
arXiv:2009.04534).

Letters: B batch, T time, D width, K choices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from torch import Tensor, nn

from plait.mixers.mixer import Mixer, State
from plait.mixers.options import MixerOptions
from plait.model.block import Block
from plait.spec import Header

Extra = TypeVar("Extra")
Result = TypeVar("Result")


class Mixture(nn.Module):
    """Runs the one choice `path`, or all of them weighted by `weights_K`; both are set before a forward pass.

    It stands where a `Block` stands. A choice that is not there (None) hands its input on.
    """

    def __init__(self, header: Header, choices: Sequence[MixerOptions | None]) -> None:
        super().__init__()
        self.choices = tuple(choices)
        self.blocks = nn.ModuleDict(
            {str(k): Block(header, options) for k, options in enumerate(choices) if options is not None}
        )
        self.path: int | None = 0
        self.weights_K: Tensor | None = None
        # While networks are compared that differ in later layers only: keep what comes out, or give it again.
        self.keeps, self.replays = False, False
        self.kept: Any = None

    @property
    def mixers(self) -> Iterator[Mixer]:
        for block in self.blocks.values():
            assert isinstance(block, Block)
            yield block.mixer

    def forward(self, x_BTD: Tensor, pad_B: Tensor | None = None) -> Tensor:
        return self._once(lambda: self._mixed(x_BTD, lambda _, block: (block(x_BTD, pad_B), None))[0])

    def forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        return self._once(lambda: self._forward_with_loss(x_BTD))

    def _forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        out_BTD, losses = self._mixed(x_BTD, lambda _, block: block.forward_with_loss(x_BTD))
        # A layer's own loss (load balancing) counts as much as the layer does.
        own = [loss if self.weights_K is None else self.weights_K[k] * loss for k, loss in losses if loss is not None]
        return out_BTD, sum(own[1:], own[0]) if own else None

    def init_memory(self, batch: int, tokens: int) -> State:
        states = {key: self._block(key).init_memory(batch, tokens) for key in self.blocks}
        return {f"{key}.{name}": value for key, state in states.items() for name, value in state.items()}

    def extend(self, x_BTD: Tensor, memory: State) -> tuple[Tensor, State]:
        """Segment memory grows in every choice, whether it runs or not: it may run next time."""
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
        """The output, and what else came out of the choices that ran."""
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
        """Times one, where the choice's share is to have a gradient."""
        if self.weights_K is None or not self.weights_K.requires_grad:
            return out_BTD
        return out_BTD * self.weights_K[k].to(out_BTD.dtype)

    def _block(self, key: str) -> Block:
        block = self.blocks[key]
        assert isinstance(block, Block)
        return block
