"""How far a verb is: what its `on_progress` is called with."""

from __future__ import annotations

from collections.abc import Callable

#: What is being done, how much of it is done, and of how much (None: not known).
OnProgress = Callable[[str, float, "float | None"], None]


def ignore(what: str, done: float, total: float | None) -> None:
    """Progress that nobody watches."""
