"""Predicted peak memory in bytes on the profiled device: weights, activations and state."""

from __future__ import annotations

from typing import ClassVar

from plait.search.objectives.predicted import Predicted


class Memory(Predicted):
    name: str = "memory"
    unit: ClassVar[str] = "bytes"
