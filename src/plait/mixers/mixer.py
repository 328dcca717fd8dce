"""The contract every mixer keeps, on the torch side.

A mixer maps (B, T, D) to (B, T, D). It may be run three ways that must agree:

    forward(x_BTD)            a whole sequence at once (training)
    extend(x_BTD, state)      the next T tokens after a state (prefill in chunks, Transformer-XL segments)
    step(x_BD, state)         the next token (generation)

In a model where a layer reads what an earlier one computed (its keys and values, its memory), both run by a fourth,
`connected`, which takes what this layer reads and returns what later layers may read from it.

A state is a dict of tensors, batch first, and is never changed in place: to go back, keep an earlier one. The rows of
a batch are reordered by indexing every tensor; `merge` and `crop` do what indexing cannot. `plait check` tests all of
it, for the mixers here and for yours.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

import torch
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.options import MixerOptions

State = dict[str, Tensor]
#: What a later layer reads from an earlier one: its keys and values, the output of its state space, the embeddings.
Loan = dict[str, Tensor]
#: Fills a parameter with seeded normal noise of the given standard deviation.
Draw = Callable[[Tensor, float], None]


@dataclass(frozen=True)
class Cut:
    """How tensor parallelism cuts a tensor. Along `dim` it has segments of these sizes (queries, keys and values in
    one matrix are three), and each process has an equal part of every segment. Without segments every process has
    all of it, and a part of its gradient."""

    dim: int
    segments: tuple[int, ...] = ()

    def part(self, whole: Tensor, rank: int, parts: int) -> Tensor:
        pieces = [segment.chunk(parts, self.dim)[rank] for segment in whole.split(self.segments, self.dim)]
        return torch.cat(pieces, self.dim)

    def join(self, every_part: Sequence[Tensor]) -> Tensor:
        """The whole tensor, of all parts in order."""
        sizes = [size // len(every_part) for size in self.segments]
        pieces = [part.split(sizes, self.dim) for part in every_part]
        return torch.cat([piece for segment in zip(*pieces, strict=True) for piece in segment], self.dim)


class Mixer(nn.Module, ABC):
    """Base of sequence mixers. A subclass implements `forward`, `init_state` and `step`."""

    #: Of a mixer in a user's file or package: its options, with name and cost.
    Options: ClassVar[type[MixerOptions] | None] = None
    #: Whether rows of a batch may start with padding (the state or `forward` takes `pad_B`).
    paddable = False

    def __init__(self, d: int, options: MixerOptions) -> None:
        super().__init__()
        self.d, self.options = d, options

    @abstractmethod
    def forward(self, x_BTD: Tensor) -> Tensor: ...

    def forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        """The output, and the auxiliary loss that training adds (load balancing of experts), where there is one."""
        return self(x_BTD), None

    @abstractmethod
    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        """The state before the first token. `rollback` is how many tokens a later `crop` may have to take back."""

    @abstractmethod
    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]: ...

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """The next T tokens. Correct for any mixer; those that can, do better than one token at a time."""
        outputs = []
        for x_BD in x_BTD.unbind(1):
            y_BD, state = self.step(x_BD, state)
            outputs.append(y_BD)
        return torch.stack(outputs, dim=1), state

    def connected(
        self, x_BTD: Tensor, state: State | None, loan: Loan, pad_B: Tensor | None = None
    ) -> tuple[Tensor, State, Loan]:
        """(output, new state, what later layers may read), given `loan`, what this layer reads from an earlier one.

        With a state, x are its next tokens. Without one (None), x are whole sequences, and the new state is empty."""
        raise NotImplementedError(f"{self.options.name} neither reads of other layers nor lends to them")

    def share_with(self, owner: Mixer) -> Mixer:
        """The mixer to put in this one's place so that both layers use the weights of `owner`, which has the same
        options. By default `owner` itself: a mixer holds no state, so one instance can serve several layers."""
        return owner

    def tensor_parallel(self, parts: int) -> dict[str, Cut]:
        """How its parameters and buffers are cut where `parts` processes share this mixer; from then on it is one of
        these parts, whose outputs are summed. Empty: it cannot be cut, and every process computes all of it."""
        return {}

    def crop(self, state: State, tokens: int) -> State:
        """The state as it was `tokens` tokens earlier, where a mixer keeps enough to know it."""
        raise UserError(
            f"{self.options.name} keeps a fixed state and no history to go back in; "
            "states are never changed in place, so keep the one you may want to return to."
        )

    def with_capacity(self, state: State, tokens: int) -> State | None:
        """The same state in buffers that `tokens` tokens in all fit into, which `step` then fills in place (`held`
        counts them); None where a mixer's cache does not grow or knows no such form."""
        return None

    def merge(self, states: Sequence[State]) -> State:
        """One batch of the rows of several states, which may stand at different lengths."""
        return {key: torch.cat([state[key] for state in states]) for key in states[0]}

    def init_weights(self, draw: Draw) -> None:
        """Seed what the model's default (normal linear weights, zero biases) does not cover."""

    def residual_weights(self) -> list[Tensor]:
        """The weights of the last map before the residual sum, which `depth_scale` makes smaller."""
        return []

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros on this mixer's device, by default in its dtype."""
        like = next(iter(self.parameters()))
        return torch.zeros(shape, device=like.device, dtype=dtype or like.dtype)


class ChannelMixer(Mixer):
    """Base of mixers that treat every position alone: no state, and a step is a sequence of one."""

    paddable = True

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        return self.forward(x_BD[:, None])[:, 0], state

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        return self.forward(x_BTD), state

    def crop(self, state: State, tokens: int) -> State:
        return state


def make_mixer(options: MixerOptions, d: int) -> Mixer:
    """Import and build the torch side of a mixer, with Canon's convolution on its input where it has one."""
    module, _, attribute = options.module.partition(":")
    made: Mixer = getattr(import_module(module), attribute)(d, options)
    if "a" in options.canon or "c" in options.canon:
        from plait.mixers.canon_module import CanonMixer  # it is a mixer itself

        return CanonMixer(made)
    return made


def only_present(mixer: Mixer, cuts: dict[str, Cut]) -> dict[str, Cut]:
    """The cuts of tensors that this mixer has."""
    present = {name for name, _ in (*mixer.named_parameters(), *mixer.named_buffers())}
    return {name: cut for name, cut in cuts.items() if name in present}
