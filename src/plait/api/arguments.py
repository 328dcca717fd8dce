"""What many verbs take: a store (its URL, or one that is open), a length of time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from plait.core.units import parse_duration
from plait.records import Store, open_store


@contextmanager
def opened_store(store: str | Store | None) -> Iterator[Store]:
    """Of a URL (None: $PLAIT_STORE, else runs/plait.db); one that is open already stays open."""
    if isinstance(store, Store):
        yield store
        return
    with open_store(store) as opened:
        yield opened


def seconds_of(time: str | float) -> float:
    """Of 90s, 10m, 1h30m, or a number of seconds."""
    return parse_duration(time) if isinstance(time, str) else float(time)
