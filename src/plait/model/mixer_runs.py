"""One mixer run by itself: which implementation its ops use on a device, and its speed relative to softmax
attention."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.mixer import make_mixer
from plait.mixers.options import MixerOptions
from plait.mixers.reading_module import standing_alone
from plait.model.architecture import Architecture
from plait.model.language_model import seed_mixer
from plait.ops.paths import autocast_on, watched_paths

WIDTHS = (64, 128, 192, 256, 512, 1024)


@dataclass(frozen=True)
class MixerPaths:
    """`paths`: op → its implementation, such as "triton" (our kernels, on a GPU) or "chunks" (torch's operations);
    empty for a mixer whose ops have only one."""

    mixer: str
    paths: dict[str, str]


def mixer_paths(arch: Architecture, device: torch.device, seq_len: int) -> list[MixerPaths]:
    """The implementations used in training: forward with gradients, on a GPU in its precision."""
    paths = []
    for text, options in {str(options.to_layer()): options for options in arch.layers}.items():
        mixer = standing_alone(options, arch.header.d)
        seed_mixer(mixer, seed=0)
        x_BTD = torch.randn(1, seq_len, arch.header.d, device=device)
        with watched_paths() as taken, autocast_on(device):
            mixer.to(device)(x_BTD)
        paths.append(MixerPaths(text, dict(taken)))
    return paths


def fitting_width(options: MixerOptions) -> int:
    """The smallest of a few widths that the mixer accepts; if it accepts none, the first, whose error then says why."""
    for d in WIDTHS:
        with suppress(UserError):
            options.check(d)
            return d
    return WIDTHS[0]


@dataclass(frozen=True)
class Timing:
    """Forward and backward of a batch, against softmax attention."""

    tokens: int
    batch: int
    ms: float
    attention_ms: float
    ratio: float


def timings(
    options: MixerOptions, *, d: int = 128, lengths: tuple[int, ...] = (128, 512, 2048), times: int = 5
) -> list[Timing]:
    """Forward and backward time against softmax attention, interleaved in one run; reported, never judged."""
    from plait.mixers.attn import AttnOptions

    d, rows = max(d, fitting_width(options)), []
    for tokens in lengths:
        batch = max(1, 4096 // tokens)
        x = torch.randn(batch, tokens, d, generator=torch.Generator().manual_seed(0))
        pair = [standing_alone(options, d), make_mixer(AttnOptions(heads=8), d)]
        taken: list[list[float]] = [[], []]
        for _ in range(times):
            for mixer, spent in zip(pair, taken, strict=True):
                spent.append(_forward_backward(mixer, x))
        ours, attention = (sorted(spent)[len(spent) // 2] for spent in taken)
        rows.append(Timing(tokens, batch, 1e3 * ours, 1e3 * attention, ours / attention))
    return rows


def _forward_backward(mixer: nn.Module, x: Tensor) -> float:
    start = time.perf_counter()
    if (y := mixer(x)).requires_grad:
        y.sum().backward()
    return time.perf_counter() - start
