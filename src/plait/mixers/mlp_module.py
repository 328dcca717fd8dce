"""Dense channel mixers.

mlp       W₂ act(W₁ x)                  Vaswani et al. 2017, arXiv:1706.03762
swiglu    W₃ (silu(W₁ x) ∘ W₂ x)        Shazeer 2020, arXiv:2002.05202
identity  0, so that the residual sum passes x on: F(X) = X (Mandava et al. 2020, arXiv:2009.04534, eq. 4)
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.mixer import ChannelMixer
from plait.mixers.mlp import IdentityOptions, MlpOptions, SwigluOptions
from plait.ops.elementwise import swiglu

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu-tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class Mlp(ChannelMixer):
    def __init__(self, d: int, options: MlpOptions) -> None:
        super().__init__(d, options)
        inner = options.inner_width(d)
        self.up = nn.Linear(d, inner, bias=options.bias)
        self.down = nn.Linear(inner, d, bias=options.bias)
        self.act = ACTIVATIONS[options.act]

    def forward(self, x_BTD: Tensor) -> Tensor:
        y: Tensor = self.down(self.act(self.up(x_BTD)))
        return y

    def residual_weights(self) -> list[Tensor]:
        return [self.down.weight]


class Swiglu(ChannelMixer):
    def __init__(self, d: int, options: SwigluOptions) -> None:
        super().__init__(d, options)
        inner = options.inner_width(d)
        # Gate and up in one product: one large matrix product is faster than two of half its size.
        self.gate_up = nn.Linear(d, 2 * inner, bias=False)
        self.down = nn.Linear(inner, d, bias=False)

    def forward(self, x_BTD: Tensor) -> Tensor:
        y: Tensor = self.down(swiglu(self.gate_up(x_BTD)))
        return y

    def residual_weights(self) -> list[Tensor]:
        return [self.down.weight]


class Identity(ChannelMixer):
    def __init__(self, d: int, options: IdentityOptions) -> None:
        super().__init__(d, options)

    def forward(self, x_BTD: Tensor) -> Tensor:
        return torch.zeros_like(x_BTD)
