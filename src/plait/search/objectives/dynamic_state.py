"""State that grows with the sequence (key-value caches), for one sequence of the space's length."""

from __future__ import annotations

from typing import ClassVar

from plait.search.objectives.exact import Exact


class DynamicState(Exact):
    name: str = "dynamic_state"
    unit: ClassVar[str] = "bytes"
