"""Settings as key=value: read into the fields of a dataclass, each by its own type.

An unknown key is answered with the nearest known one, a value of the wrong kind with what the key takes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any

from plait.core.errors import UserError, did_you_mean

_TAKES = {int: "a whole number", float: "a number", bool: "true or false"}


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """`d=256` and its like, as text."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise UserError(f"{option} {text}: write key=value.")
        found[key] = value
    return found


def require_known(name: str, known: Iterable[str], owner: str, noun: str = "setting") -> None:
    """Refuse a key that `owner` does not have."""
    names = list(known)
    if name not in names:
        there = f"Known: {', '.join(names)}." if names else "It has none."
        raise UserError(f"{owner} has no {noun} '{name}'.{did_you_mean(name, names)} {there}")


def read_value(value: Any, kind: type) -> Any:
    """Text (or a value) as one of this kind: a number, true or false, words separated by slashes."""
    if kind is bool:
        return _TRUTH[str(value).lower()]
    if kind is tuple:
        return tuple(part for part in value.split("/") if part) if isinstance(value, str) else tuple(value)
    return kind(value)


_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def kinds_of(settings: Any) -> dict[str, type]:
    """The key → the type of its default, of a dataclass or of one of its values."""
    return {spec.name: type(spec.default) for spec in fields(settings)}


def current_names(given: Mapping[str, Any], of: Any) -> dict[str, Any]:
    """The same with keys that were called otherwise before (a field's metadata `formerly`) under their names of now."""
    names = {spec.metadata["formerly"]: spec.name for spec in fields(of) if spec.metadata.get("formerly")}
    return {names.get(key, key): value for key, value in given.items()}


def read_values(
    given: Mapping[str, Any], kinds: Mapping[str, type], owner: str, noun: str = "setting"
) -> dict[str, Any]:
    """Values of the kinds that `owner` has, given as text or as such values."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        require_known(name, kinds, owner, noun)
        try:
            found[name] = read_value(value, kinds[name])
        except (ValueError, KeyError):
            raise UserError(f"{owner}: {name}={value} given, but it is {_TAKES[kinds[name]]}.") from None
    return found


def read_pairs(given: Sequence[str], option: str, of: Any) -> dict[str, Any]:
    """`lr=0.01` and its like as keys of the dataclass `of`, with values of their kinds."""
    kinds, found = kinds_of(of), {}
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("="))
        key = next(iter(current_names({key: value}, of)))
        if not equals or key not in kinds:
            wrong = f"there is no key '{key}'" if equals else "write key=value"
            raise UserError(f"{option} {text}: {wrong}.{did_you_mean(key, kinds)} Keys: {', '.join(kinds)}.")
        try:
            found[key] = read_value(value, kinds[key])
        except (ValueError, KeyError):
            raise UserError(f"{option} {text}: {key} takes {_TAKES[kinds[key]]}.") from None
    return found
