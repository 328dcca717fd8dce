"""All parameters, embeddings included: what is stored and shipped."""

from __future__ import annotations

from typing import ClassVar

from plait.search.objectives.exact import Exact


class TotalParams(Exact):
    name: str = "total_params"
    unit: ClassVar[str] = "parameters"
