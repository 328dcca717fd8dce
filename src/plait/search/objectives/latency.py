"""Predicted latency in seconds on the profiled device."""

from __future__ import annotations

from typing import ClassVar

from plait.search.objectives.predicted import Predicted


class Latency(Predicted):
    name: str = "latency"
    unit: ClassVar[str] = "s"
