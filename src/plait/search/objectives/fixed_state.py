"""State that does not grow with the sequence (MAD's "fixed state"), for one sequence."""

from __future__ import annotations

from typing import ClassVar

from plait.search.objectives.exact import Exact


class FixedState(Exact):
    name: str = "fixed_state"
    unit: ClassVar[str] = "bytes"
