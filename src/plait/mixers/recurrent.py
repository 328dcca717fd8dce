"""Base of the mixers whose past is a state of fixed size.

They need no second path for training: a whole sequence is an extension of nothing, and their ops read a state that
is not there as zeros.
"""

from __future__ import annotations

from abc import abstractmethod

import torch
from torch import Tensor, nn

from plait.mixers.mixer import Mixer, State


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
