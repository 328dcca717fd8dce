"""The contract of mixers on the torch side: base classes, and the norms and gates that mixers share.

A mixer maps (B, T, D) to (B, T, D). It can be run in three ways that must agree:

    forward(x_BTD)            a whole sequence at once (training)
    extend(x_BTD, state)      the next T tokens after a state (prefill in chunks, Transformer-XL segments)
    step(x_BD, state)         the next token (generation)

If a layer reads what an earlier one computed (its keys and values, its memory), both run by a fourth, `connected`,
which takes what this layer reads and returns what later layers may read from it.

A state is a dict of tensors, batch first, and is never modified in place: to return to an earlier position, keep its
state. The rows of a batch are reordered by indexing every tensor; `merge` and `crop` do what indexing cannot. `plait
check` tests all of this, for the mixers here and for users' own.

A mixer with a recurrent state (`RecurrentMixer`) needs no second path for training: a whole sequence is `extend` from
no state at all, `{}`, which its ops read as zeros. Many of them first pass their projections through a short
convolution (`ConvolvedMixer`). Attention keeps every token's keys and values (`CachedMixer`).

Letters: B batch, T new tokens, N tokens in the cache, D model width, H heads, K key width and V value width of a head,
C convolved channels, W width of the convolution.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.options import MixerOptions
from plait.ops.elementwise import rms_norm, take_tokens
from plait.ops.shortconv import short_conv, short_conv_step

State = dict[str, Tensor]
#: What a later layer reads from an earlier one: its keys and values, the output of its state space, the embeddings.
Loan = dict[str, Tensor]
#: Fills a parameter with seeded normal noise of the given standard deviation.
Draw = Callable[[Tensor, float], None]


@dataclass(frozen=True)
class Cut:
    """How tensor parallelism splits a tensor. Along `dim` it has segments of these sizes (queries, keys and values in
    one matrix are three), and each process has an equal part of every segment. Without segments, every process has the
    whole tensor and a part of its gradient."""

    dim: int
    segments: tuple[int, ...] = ()

    def part(self, whole: Tensor, rank: int, parts: int) -> Tensor:
        pieces = [segment.chunk(parts, self.dim)[rank] for segment in whole.split(self.segments, self.dim)]
        return torch.cat(pieces, self.dim)

    def join(self, every_part: Sequence[Tensor]) -> Tensor:
        """The whole tensor from all parts in order."""
        sizes = [size // len(every_part) for size in self.segments]
        pieces = [part.split(sizes, self.dim) for part in every_part]
        return torch.cat([piece for segment in zip(*pieces, strict=True) for piece in segment], self.dim)


class Mixer(nn.Module, ABC):
    """Base of sequence mixers. A subclass implements `forward`, `init_state` and `step`."""

    #: For a mixer in a user's file or package: its options, with name and cost.
    Options: ClassVar[type[MixerOptions] | None] = None
    #: Whether rows of a batch may start with padding (the state or `forward` takes `pad_B`).
    paddable = False

    def __init__(self, d: int, options: MixerOptions) -> None:
        super().__init__()
        self.d, self.options = d, options

    @abstractmethod
    def forward(self, x_BTD: Tensor) -> Tensor: ...

    def forward_with_loss(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        """The output, and the auxiliary loss that training adds (load balancing of experts), if there is one."""
        return self(x_BTD), None

    def forward_at(self, x_BTD: Tensor, at_BN: Tensor) -> tuple[Tensor, Tensor | None]:
        """`forward_with_loss` with the output only at some positions of each sequence. This default is correct for any
        mixer; mixers that can avoid computing other positions override it."""
        y_BTD, loss = self.forward_with_loss(x_BTD)
        return take_tokens(y_BTD, at_BN), loss

    @property
    def pointwise(self) -> bool:
        """Whether the output at a position depends only on the input at that position."""
        return False

    @abstractmethod
    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        """The state before the first token. `rollback` is how many tokens a later `crop` may remove."""

    @abstractmethod
    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]: ...

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        """The next T tokens. This default is correct for any mixer but loops over tokens; faster mixers override it."""
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
        """The mixer that replaces this one so that both layers use the weights of `owner`, which has the same options.
        By default `owner` itself: a mixer has no internal state, so one instance can serve several layers."""
        return owner

    def tensor_parallel(self, parts: int) -> dict[str, Cut]:
        """How parameters and buffers are split over `parts` processes; from then on this mixer is one of the parts,
        whose outputs are summed. Empty: it cannot be split and is replicated in every process."""
        return {}

    def crop(self, state: State, tokens: int) -> State:
        """The state as it was `tokens` tokens earlier, if the mixer keeps enough to restore it."""
        raise UserError(
            f"{self.options.name} keeps a fixed state and no history to go back in; "
            "states are never changed in place, so keep the one you may want to return to."
        )

    def with_capacity(self, state: State, tokens: int) -> State | None:
        """The same state in buffers with a capacity of `tokens` tokens, which `step` then fills in place (`held` counts
        them); None if the cache does not grow or has no such form."""
        return None

    def merge(self, states: Sequence[State]) -> State:
        """One batch from the rows of several states, which may have different lengths."""
        return {key: torch.cat([state[key] for state in states]) for key in states[0]}

    def init_weights(self, draw: Draw) -> None:
        """Initialise what the model's default (normal linear weights, zero biases) does not cover."""

    def residual_weights(self) -> list[Tensor]:
        """The weights of the last map before the residual sum, which `depth_scale` makes smaller."""
        return []

    def zeros(self, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
        """Zeros on this mixer's device, by default in its dtype."""
        like = next(iter(self.parameters()))
        return torch.zeros(shape, device=like.device, dtype=dtype or like.dtype)


class ChannelMixer(Mixer):
    """Base of mixers that process every position independently: no state, and a step is a sequence of one."""

    paddable = True

    @property
    def pointwise(self) -> bool:
        # A load-balancing loss needs all positions; one with a state (Canon's convolution, a user's token shift) reads
        # earlier ones.
        return type(self).forward_with_loss is Mixer.forward_with_loss and not self.init_state(1)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        return {}

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        return self.forward(x_BD[:, None])[:, 0], state

    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]:
        return self.forward(x_BTD), state

    def crop(self, state: State, tokens: int) -> State:
        return state


def make_mixer(options: MixerOptions, d: int) -> Mixer:
    """Import and build the torch side of a mixer, with Canon's convolution on its input if it has one."""
    module, _, attribute = options.module.partition(":")
    mixer: Mixer = getattr(import_module(module), attribute)(d, options)
    if "a" in options.canon or "c" in options.canon:
        from plait.mixers.canon_module import CanonMixer  # imported here because it is a mixer itself

        return CanonMixer(mixer)
    return mixer


class RmsNorm(nn.Module):
    """x / √(mean(x²) + ε) ∘ w over the last dimension (Zhang and Sennrich 2019, arXiv:1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


class HeadNorm(nn.Module):
    """RMS norm over each head's channels, (…, H, D). `shared`: one weight vector (D) for all heads, else (H, D)."""

    def __init__(self, heads: int, head_dim: int, *, eps: float, shared: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(head_dim) if shared else torch.ones(heads, head_dim))

    def forward(self, x_BTHD: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return rms_norm(x_BTHD, self.weight, self.eps)
        normed = rms_norm(x_BTHD, torch.ones_like(self.weight[0]), self.eps)
        return normed * (self.weight.to(normed.dtype) if normed.is_cuda else self.weight)


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """The model's norm: 'rms' (one weight per channel) or 'layer' (weight and bias)."""
    return RmsNorm(width, eps) if kind == "rms" else nn.LayerNorm(width, eps=eps)


def gated(x: Tensor, gate: Tensor, kind: str) -> Tensor:
    """x ∘ act(gate), with the nonlinearity named by a mixer's `out_gate` option ("none": x alone)."""
    if kind == "none":
        return x
    return x * (F.silu(gate) if kind == "silu" else gate.sigmoid())


class RecurrentMixer(Mixer):
    """A mixer with a state of fixed size that ends in the linear map `output`.

    A subclass implements `init_state` and `extend`, which takes `{}` for the state before the first token, and `step`
    where one token can be computed more cheaply than as a sequence of length 1.
    """

    output: nn.Linear

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.extend(x_BTD, {})[0]

    @abstractmethod
    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]: ...

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        y_BTD, state = self.extend(x_BD[:, None], state)
        return y_BTD[:, 0], state

    def residual_weights(self) -> list[Tensor]:
        return [self.output.weight]

    @property
    def state_dtype(self) -> torch.dtype:
        """At least fp32, because decays multiply and states accumulate over the whole sequence."""
        return torch.promote_types(self.output.weight.dtype, torch.float32)


class ConvolvedMixer(RecurrentMixer):
    """A recurrent mixer whose queries, keys and values (C channels) first pass through a short causal convolution with
    silu.

    Its state is one K × V matrix per head, "S", and the convolution's last W − 1 inputs, "conv". A subclass calls
    `add_convolution` and sets `state_shape`.
    """

    taps_CW: nn.Parameter | None
    taps_bias_C: nn.Parameter | None
    state_shape: tuple[int, int, int]  # H, K, V

    def add_convolution(self, channels: int, width: int, *, bias: bool = False) -> None:
        """Add a convolution of width W; 0: no convolution and no nonlinearity."""
        self.taps_std = (3 * max(1, width)) ** -0.5  # the standard deviation of torch's own convolutions, U(±1/√W)
        taps_CW = nn.Parameter(self.taps_std * torch.randn(channels, width)) if width else None
        self.register_parameter("taps_CW", taps_CW)
        self.register_parameter("taps_bias_C", nn.Parameter(torch.zeros(channels)) if bias else None)

    def init_weights(self, draw: Draw) -> None:
        if self.taps_CW is not None:
            draw(self.taps_CW, self.taps_std)

    def init_state(self, batch: int, *, rollback: int = 0) -> State:
        state = {"S": self.zeros(batch, *self.state_shape, dtype=self.state_dtype)}
        if self.taps_CW is not None:
            channels, width = self.taps_CW.shape
            state["conv"] = self.zeros(batch, width - 1, channels)
        return state

    def convolve(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """silu(conv(x)) of a sequence, (B, T, C), or of one token, (B, C), and the state's new "conv"."""
        if self.taps_CW is None:
            return x, {}
        if x.dim() == 2:
            y, tail = short_conv_step(x, self.taps_CW, self.taps_bias_C, state["conv"], activation="silu")
        else:
            y, tail = short_conv(x, self.taps_CW, self.taps_bias_C, state_BHC=state.get("conv"), activation="silu")
        return y, {"conv": tail}


class CachedMixer(Mixer):
    """A mixer with a cache that has an entry for every token, (B, N, …), under the names in `cache` ("k", "v"), and
    that ends in the linear map `output`. A step is an extension by one token."""

    cache: ClassVar[tuple[str, ...]] = ("k", "v")
    output: nn.Linear

    def step(self, x_BD: Tensor, state: State) -> tuple[Tensor, State]:
        y_BTD, state = self.extend(x_BD[:, None], state)
        return y_BTD[:, 0], state

    @abstractmethod
    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]: ...

    def merge(self, states: Sequence[State]) -> State:
        """Batch rows of different lengths: shorter caches are padded on the left, and `pad` counts the padding."""
        longest = max(state[self.cache[0]].shape[1] for state in states)
        return super().merge([self._padded(state, longest) for state in states])

    def residual_weights(self) -> list[Tensor]:
        return [self.output.weight]

    def _padded(self, state: State, tokens: int) -> State:
        first = state[self.cache[0]]
        missing = tokens - first.shape[1]
        pad_B = state.get("pad", torch.zeros(len(first), dtype=torch.long, device=first.device))
        caches = {key: state[key] for key in self.cache if key in state}
        padded = {key: F.pad(x, (0, 0) * (x.dim() - 2) + (missing, 0)) for key, x in caches.items()}
        return {**state, **padded, "pad": pad_B + missing}

    def with_room(self, state: State, tokens: int) -> State:
        """The state with caches zero-padded to a capacity of `tokens` tokens; `held` counts those in use."""
        caches = {key: state[key] for key in self.cache if key in state}
        held = next(iter(caches.values())).shape[1]
        roomy = {key: F.pad(x, (0, 0) * (x.dim() - 2) + (0, tokens - held)) for key, x in caches.items()}
        return {**state, **roomy, "held": torch.full((1,), held, device=state["pos"].device)}


def appended(state: State, key: str, new: Tensor) -> Tensor:
    """A cache with the newest entries appended: in place if it has spare capacity (`with_room`)."""
    if "held" not in state:
        return torch.cat([state[key], new], dim=1)
    return state[key].index_copy_(1, state["held"], new)


def trimmed(states: Sequence[State], keys: Sequence[str]) -> list[State]:
    """The states with these tensors truncated to the length of the shortest: some rows may have been cropped."""
    trimmed_states = [dict(state) for state in states]
    for key in keys:
        if key in states[0]:
            least = min(state[key].shape[1] for state in states)
            for state in trimmed_states:
                state[key] = state[key][:, state[key].shape[1] - least :]
    return trimmed_states


def cannot_crop(name: str, tokens: int) -> UserError:
    return UserError(
        f"cannot take back {tokens} tokens: {name} did not keep them; "
        f"start with init_state(..., rollback={tokens}) or more."
    )


def only_present(mixer: Mixer, cuts: dict[str, Cut]) -> dict[str, Cut]:
    """The cuts of those tensors that this mixer has."""
    present = {name for name, _ in (*mixer.named_parameters(), *mixer.named_buffers())}
    return {name: cut for name, cut in cuts.items() if name in present}
