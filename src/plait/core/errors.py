"""`UserError`, the one exception for bad input. The command line prints its message and exits with code 2; in Python
it is a `ValueError`."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input: what was given, what is allowed, and what to do about it."""


def did_you_mean(text: str, known: Iterable[str]) -> str:
    """' Did you mean …?' for the nearest known name, or an empty string when nothing is near or the name is right."""
    known = list(known)
    if text in known:
        return ""
    spelling = {name.lower(): name for name in known}
    near = difflib.get_close_matches(text.lower(), spelling, n=1, cutoff=0.6)
    return f" Did you mean '{spelling[near[0]]}'?" if near else ""
