"""How far long-running work is: the signature of `on_progress`."""

from __future__ import annotations

from collections.abc import Callable

#: What is being done, how much of it is done, and of how much (None: not known).
OnProgress = Callable[[str, float, "float | None"], None]
#: How much is done, and of how much; the caller knows what is being done.
OnCount = Callable[[int, int], None]


def ignore(what: str, done: float, total: float | None) -> None:
    """An `OnProgress` that does nothing."""


def silent(done: int, total: int) -> None:
    """An `OnCount` that does nothing."""
