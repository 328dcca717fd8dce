"""The one kind of error a user may cause. The command line prints it and leaves with code 2; a library caller
catches it as the `ValueError` it is."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input: what was given, what is allowed, and what to do about it."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """' Did you mean …?' for the nearest known name, or an empty string when nothing is near."""
    spelling = {name.lower(): name for name in known}
    near = difflib.get_close_matches(given.lower(), spelling, n=1, cutoff=0.6)
    return f" Did you mean '{spelling[near[0]]}'?" if near else ""
