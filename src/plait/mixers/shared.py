"""What mixers share: norms, rotary positions with remembered angles, and the base of those with a state of fixed size.

Norms are RMS (Zhang and Sennrich 2019, arXiv:1910.07467) and layer norm, over the last dimension. Mixers of a fixed
state need no second path for training: a whole sequence is an extension of nothing, and their ops read a state that is
not there as zeros.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.mixer import Mixer, State
from plait.mixers.rope_scaling import RopeScaling
from plait.ops.elementwise import rms_norm, rotary_angles, rotate
from plait.ops.fused_elementwise import fused_takes, split_rotated


class RmsNorm(nn.Module):
    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return rms_norm(x, self.weight, self.eps)


def gated(x: Tensor, gate: Tensor, kind: str) -> Tensor:
    """x with the output gate that a mixer's `out_gate` names."""
    if kind == "none":
        return x
    return x * (F.silu(gate) if kind == "silu" else gate.sigmoid())


def make_norm(kind: str, width: int, eps: float) -> nn.Module:
    """The model's norm: 'rms' (one weight a channel) or 'layer' (weight and bias)."""
    return RmsNorm(width, eps) if kind == "rms" else nn.LayerNorm(width, eps=eps)


class HeadNorm(nn.Module):
    """RMS norm over each head's channels. The weight is one a channel and head, or one a channel shared by heads."""

    def __init__(self, heads: int, head_dim: int, *, eps: float, shared: bool = False) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(head_dim) if shared else torch.ones(heads, head_dim))

    def forward(self, x_BTHD: Tensor) -> Tensor:
        if self.weight.dim() == 1:
            return rms_norm(x_BTHD, self.weight, self.eps)
        normed = rms_norm(x_BTHD, torch.ones_like(self.weight[0]), self.eps)
        return normed * (self.weight.to(normed.dtype) if normed.is_cuda else self.weight)


class Rotary(nn.Module):
    """Turns queries and keys by their positions.

    The angles of a sequence's first tokens are remembered by dtype and device: a compiled graph then reads them where
    it would compute a power, a sine and a cosine for every channel.
    """

    def __init__(self, head_dim: int, theta: float, scaling: RopeScaling | None = None) -> None:
        super().__init__()
        self.head_dim, self.theta, self.scaling = head_dim, theta, scaling
        self._known: dict[tuple[torch.dtype, torch.device], tuple[Tensor, Tensor]] = {}

    def forward(self, x_BTHD: Tensor, positions: Tensor | None = None) -> Tensor:
        """Turn by `positions`, or by 0, 1, 2 … when none are given."""
        if positions is None:
            cos, sin = self._first(x_BTHD.shape[1], x_BTHD.dtype, x_BTHD.device)
        else:
            cos, sin = self._angles(positions, x_BTHD.dtype)
        return rotate(x_BTHD, cos, sin)

    def remember(self, tokens: int, dtype: torch.dtype, device: torch.device) -> None:
        """Have the angles of so many first tokens ready."""
        for kind in {dtype, torch.promote_types(dtype, torch.float32)}:
            self._first(tokens, kind, device)

    def split(self, packed_BTAP: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor] | None:
        """Turned queries and keys, and values, of a joint projection, where there is a kernel for that."""
        if not fused_takes(packed_BTAP) or packed_BTAP.shape[-1] != self.head_dim:
            return None
        cos, sin = self._first(packed_BTAP.shape[1], torch.float32, packed_BTAP.device)
        return split_rotated(packed_BTAP, cos.flatten(1), sin.flatten(1), heads)

    def _first(self, tokens: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
        known = self._known.get((dtype, device))
        if known is None or len(known[0]) < tokens:
            known = self._angles(torch.arange(tokens, device=device), dtype)
            if not torch.compiler.is_compiling() and device.type != "meta":
                self._known[dtype, device] = known
        return known[0][:tokens], known[1][:tokens]

    def _angles(self, positions: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        if self.scaling is None:
            return rotary_angles(positions, self.head_dim, self.theta, dtype)
        exact = torch.promote_types(dtype, torch.float32)
        slowed_I = self.scaling.slowdown(self.head_dim, self.theta, exact, positions.device)
        cos, sin = rotary_angles(positions, self.head_dim, self.theta, dtype, slowed_I)
        return self.scaling.magnitude * cos, self.scaling.magnitude * sin


def with_room(state: State, growing: Sequence[str], tokens: int) -> State:
    """The state with zeros behind what it holds, for `tokens` tokens in all, and their number as `held`."""
    caches = {key: state[key] for key in growing if key in state}
    held = next(iter(caches.values())).shape[1]
    roomy = {key: F.pad(x, (0, 0) * (x.dim() - 2) + (0, tokens - held)) for key, x in caches.items()}
    return {**state, **roomy, "held": torch.full((1,), held, device=state["pos"].device)}


def appended(state: State, key: str, new: Tensor) -> Tensor:
    """A cache with the newest entries behind the others: in place where it has room for them (`with_room`)."""
    if "held" not in state:
        return torch.cat([state[key], new], dim=1)
    return state[key].index_copy_(1, state["held"], new)


class RecurrentMixer(Mixer):
    """A subclass implements `init_state`, `extend` (which takes `{}` for the state before the first token) and `step`,
    and ends in the linear map `output`."""

    output: nn.Linear

    def forward(self, x_BTD: Tensor) -> Tensor:
        return self.extend(x_BTD, {})[0]

    @abstractmethod
    def extend(self, x_BTD: Tensor, state: State) -> tuple[Tensor, State]: ...

    def residual_weights(self) -> list[Tensor]:
        return [self.output.weight]

    @property
    def state_dtype(self) -> torch.dtype:
        """Decays multiply and states add up over the whole sequence: never below fp32."""
        return torch.promote_types(self.output.weight.dtype, torch.float32)
