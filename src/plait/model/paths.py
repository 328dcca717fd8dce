"""Which path the ops of an architecture's mixers take on a device: each distinct mixer is built and run once."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from plait.mixers.reading_module import standing_alone
from plait.model.architecture import Architecture
from plait.model.construct import seed_mixer
from plait.ops.paths import watched_paths


@dataclass(frozen=True)
class MixerPaths:
    """`paths`: op → the path it takes, such as "triton" (our kernels, on a GPU) or "chunks" (torch's operations); empty
    for a mixer whose ops have but one way."""

    mixer: str
    paths: dict[str, str]


def mixer_paths(arch: Architecture, device: torch.device, seq_len: int) -> list[MixerPaths]:
    """As in training: forward with gradients, on a GPU in bf16."""
    found = []
    for text, options in {str(options.to_layer()): options for options in arch.layers}.items():
        mixer = standing_alone(options, arch.header.d)
        seed_mixer(mixer, seed=0)
        x_BTD = torch.randn(1, seq_len, arch.header.d, device=device)
        with watched_paths() as taken, torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            mixer.to(device)(x_BTD)
        found.append(MixerPaths(text, dict(taken)))
    return found
