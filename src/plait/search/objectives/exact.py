"""Objectives that are columns of the space: exact, and free for millions of candidates."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from plait.search.objectives.objective import Batch, Objective


class Exact(Objective):
    maximise: bool = False

    def __init__(self, maximise: bool | None = None) -> None:
        if maximise is not None:
            self.maximise = maximise

    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        return {self.name: batch.columns[self.name]}
