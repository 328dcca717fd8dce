"""Parameters that one token meets; fewer than all of them with experts."""

from __future__ import annotations

from typing import ClassVar

from plait.search.objectives.exact import Exact


class ActiveParams(Exact):
    name: str = "active_params"
    unit: ClassVar[str] = "parameters"
