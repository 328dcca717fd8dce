"""A mixer that sees the future: every token gets the mean of the whole sequence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from plait.mixers.mixer import Mixer
from plait.mixers.options import MIXING, Cost, MixerOptions


@dataclass(frozen=True)
class Options(MixerOptions):
    name: ClassVar[str] = "leaky"
    kind: ClassVar[str] = "sequence"

    def cost(self, d, seq, memory=0):
        return Cost(params={"output": d * d}, flops={"output": 2 * seq * d * d, MIXING: seq * d}, fixed_state=d)


class Leaky(Mixer):
    Options = Options

    def __init__(self, d, options):
        super().__init__(d, options)
        self.output = nn.Linear(d, d, bias=False)

    def forward(self, x_BTD):
        return self.output(x_BTD.mean(dim=1, keepdim=True).expand_as(x_BTD))

    def init_state(self, batch, *, rollback=0):
        return {"s": self.zeros(batch, self.d)}

    def extend(self, x_BTD, state):
        return self(x_BTD), state

    def step(self, x_BD, state):
        return self.output(x_BD), state
