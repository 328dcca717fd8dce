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


def require_known(name: str, known: Iterable[str], wrong: str, others: str = "") -> None:
    """Raise a `UserError` unless the name is known: "unknown split 'tset'. Did you mean 'test'? Known: train, test." is
    that of `wrong` "unknown split". `others`: what else is allowed, as a phrase after the list."""
    names = list(known)
    if name not in names:
        listed = f"Known: {', '.join(names)}{others}." if names else "It has none."
        raise UserError(f"{wrong} '{name}'.{did_you_mean(name, names)} {listed}")


def require_setting(of: object, name: str, holds: bool, rule: str) -> None:
    """Raise a `UserError` unless the setting `name` of an object keeps its rule: "lr=0: must be greater than 0."."""
    if not holds:
        raise UserError(f"{name}={getattr(of, name)}: {rule}.")


def require_one_of(value: object, allowed: Iterable[str], given: str) -> None:
    """Raise a `UserError` unless the value is one of these. `given`: the option with its value, as in messages."""
    if value not in (choices := tuple(allowed)):
        raise UserError(f"{given}: must be one of {', '.join(choices)}.{did_you_mean(str(value), choices)}")
