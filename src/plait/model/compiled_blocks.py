"""Blocks compiled by torch: the pattern of blocks that a model repeats is compiled once for all its repetitions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from plait.mixers.options import MixerOptions
from plait.mixers.rotary import Rotary
from plait.model.backbone import Backbone, Block, Blocks


class Region(nn.Module):
    """Consecutive blocks that are compiled as one graph. Regions of equal blocks share the compiled code."""

    def __init__(self, blocks: Sequence[Block]) -> None:
        super().__init__()
        self.blocks = Blocks(blocks)

    def forward(self, x_BTD: Tensor) -> tuple[Tensor, Tensor | None]:
        own: Tensor | None = None
        for block in self.blocks:
            x_BTD, loss = block.forward_with_loss(x_BTD)
            own = loss if own is None else own if loss is None else own + loss
        return x_BTD, own


#: Most blocks in one compiled region: a longer one takes longer to compile and is not faster.
LONGEST_REGION = 8


def repeated_pattern(layers: Sequence[MixerOptions]) -> int:
    """The period with which a model's layers repeat, such as 2 for (attn swiglu)x12; 1 if they do not repeat."""
    for period in range(1, min(LONGEST_REGION, len(layers) // 2) + 1):
        if len(layers) % period == 0 and tuple(layers) == tuple(layers[:period]) * (len(layers) // period):
            return period
    return 1


def remember_angles(model: nn.Module, tokens: int, dtype: torch.dtype) -> None:
    """Cache the rotary angles of sequences of `tokens` tokens: graphs compiled afterwards read them instead of
    computing sines and cosines for every channel."""
    device = next(model.parameters()).device
    for module in model.modules():
        if isinstance(module, Rotary):
            module.remember(tokens, dtype, device)


def compile_blocks(backbone: Backbone, tokens: int, dtype: torch.dtype, backend: str = "inductor") -> int:
    """Compile a model's blocks for training on sequences of `tokens` tokens with matrix products in `dtype`; returns
    the number of distinct patterns to compile."""
    remember_angles(backbone, tokens, dtype)
    # Layers that read from each other run uncompiled, one by one; the others are compiled one by one.
    layers = backbone.arch.layers
    period = 1 if backbone.arch.links else repeated_pattern(layers)
    blocks = list(backbone.blocks)
    backbone.regions = [Region(blocks[i : i + period]) for i in range(0, len(blocks), period)]
    distinct = {layers[i : i + period] for i in range(0, len(blocks), period)}
    limit = torch._dynamo.config.recompile_limit
    torch._dynamo.config.recompile_limit = max(limit, 8 + 2 * len(distinct))
    for region in backbone.regions:
        region.compile(fullgraph=True, dynamic=False, backend=backend)
    return len(distinct)
