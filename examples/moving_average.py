"""A gated moving average: y_t = W_o (silu(W_g x_t) ∘ s_t),  s_t = a s_{t−1} + (1 − a) W_v x_t,  a learned a channel.
Letters: B batch, T time, D width."""

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from plait.mixers import MIXING, Cost, Mixer, MixerOptions, option
from plait.ops.longconv import modal_conv, modal_conv_step


@dataclass(frozen=True)
class Options(MixerOptions):
    """A gated moving average."""

    name: ClassVar[str] = "moving-average"
    kind: ClassVar[str] = "sequence"
    memory: float = option(16.0, "initial memory in tokens", minimum=1, choices=(4, 16, 64))

    def cost(self, d, seq, memory=0):
        return Cost(
            params={"value, gate": 2 * d * d, "output": d * d, "decay": d},
            flops={"projections": 2 * seq * 3 * d * d, MIXING: 4 * seq * d},
            fixed_state=d,
        )


class MovingAverage(Mixer):
    Options = Options

    def __init__(self, d, options):
        super().__init__(d, options)
        self.value_gate = nn.Linear(d, 2 * d, bias=False)
        self.output = nn.Linear(d, d, bias=False)
        self.decay_D = nn.Parameter(torch.full((d,), 1 / options.memory).expm1().log())

    def forward(self, x_BTD):
        return self.extend(x_BTD, self.init_state(len(x_BTD)))[0]

    def init_state(self, batch, *, rollback=0):
        return {"s": self.zeros(batch, self.d, 1)}

    def extend(self, x_BTD, state):  # the next T tokens, in parallel
        value, gate, log_a, gain = self._project(x_BTD)
        s_BTD, new = modal_conv(value, log_a, gain, state_BCS=state["s"])
        return self.output(gate * s_BTD), {"s": new}

    def step(self, x_BD, state):  # the next token
        value, gate, log_a, gain = self._project(x_BD)
        s_BD, new = modal_conv_step(value, log_a, gain, None, state["s"])
        return self.output(gate * s_BD), {"s": new}

    def _project(self, x):
        value, gate = self.value_gate(x).chunk(2, dim=-1)
        log_a_D1 = -F.softplus(self.decay_D)[:, None]
        return value, F.silu(gate), log_a_D1, -torch.expm1(log_a_D1)
