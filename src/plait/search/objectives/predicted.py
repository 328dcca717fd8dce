"""Objectives that a predictor gives: what a profile of the device says about candidates nobody has run.

A rule that must hold on the device speaks of the interval's upper end, `latency_high <= 40ms`, not of the mean.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.search.objectives.objective import Batch, Objective

Floats = NDArray[np.float64]


class Predictor(Protocol):
    """Predicts quantities of a device, in seconds and bytes."""

    def predict(self, quantity: str, batch: Batch) -> tuple[Floats, Floats]:
        """For every candidate the mean, and by how much the 95 % interval reaches to either side; maybe for none."""
        ...

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON that tells one predictor from another: the profile's hash, the setting."""
        ...


class Predicted(Objective):
    maximise: bool = False

    def __init__(self, predictor: Predictor | None = None) -> None:
        if predictor is None:
            raise UserError(f"{self.name} is predicted from a profile of the device, and none was given.")
        self.predictor = predictor

    def columns(self, batch: Batch) -> dict[str, Floats]:
        mean_N, reach_N = self.predictor.predict(self.name, batch)
        return {self.name: mean_N, f"{self.name}_high": mean_N + reach_N}

    def as_dict(self) -> dict[str, Any]:
        return {**super().as_dict(), "predictor": self.predictor.as_dict()}
