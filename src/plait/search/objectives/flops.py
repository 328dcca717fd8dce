"""Forward FLOPs for the space's sequence length, two for each multiply-add."""

from __future__ import annotations

from typing import ClassVar

from plait.search.objectives.exact import Exact


class Flops(Exact):
    name: str = "flops"
    unit: ClassVar[str] = "FLOPs"
