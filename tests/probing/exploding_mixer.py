"""A mixer that is harmless until it learns: its gain overflows with the first step."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from plait.mixers.mixer import Mixer
from plait.mixers.options import MIXING, Cost, MixerOptions


@dataclass(frozen=True)
class Options(MixerOptions):
    name: ClassVar[str] = "exploding"
    kind: ClassVar[str] = "sequence"

    def cost(self, d, seq, memory=0):
        return Cost(params={"gain": d, "output": d * d}, flops={"output": 2 * seq * d * d, MIXING: seq * d})


class Exploding(Mixer):
    Options = Options

    def __init__(self, d, options):
        super().__init__(d, options)
        self.gain_D = nn.Parameter(torch.zeros(d))
        self.output = nn.Linear(d, d, bias=False)

    def forward(self, x_BTD):
        return self.output(x_BTD * torch.exp(1e6 * self.gain_D))

    def init_state(self, batch, *, rollback=0):
        return {}

    def extend(self, x_BTD, state):
        return self(x_BTD), state

    def step(self, x_BD, state):
        return self.output(x_BD * torch.exp(1e6 * self.gain_D)), state
