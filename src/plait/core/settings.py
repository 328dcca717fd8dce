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
    """`["d=256", …]` as a dictionary of texts. `option` names the command-line option in messages."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = (part.strip() for part in text.partition("="))
        if not equals or not key or not value:
            raise UserError(f"{option} {text}: write key=value.")
        found[key] = value
    return found


def require_known(name: str, known: Iterable[str], owner: str, noun: str = "setting") -> None:
    """Raise a `UserError` if `owner` has no such key."""
    names = list(known)
    if name not in names:
        there = f"Known: {', '.join(names)}." if names else "It has none."
        raise UserError(f"{owner} has no {noun} '{name}'.{did_you_mean(name, names)} {there}")


def read_value(value: Any, kind: type) -> Any:
    """A text converted to this type: a number, true or false, words separated by slashes. Other values are converted
    alike."""
    if kind is bool:
        return _TRUTH[str(value).lower()]
    if kind is tuple:
        return tuple(part for part in value.split("/") if part) if isinstance(value, str) else tuple(value)
    return kind(value)


_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}


def kinds_of(settings: Any) -> dict[str, type]:
    """Field name → type of its default, for a dataclass or an instance of one."""
    return {spec.name: type(spec.default) for spec in fields(settings)}


def current_names(given: Mapping[str, Any], of: Any) -> dict[str, Any]:
    """The same with former names of fields (the field's metadata `formerly`) replaced by their present names."""
    names = {spec.metadata["formerly"]: spec.name for spec in fields(of) if spec.metadata.get("formerly")}
    return {names.get(key, key): value for key, value in given.items()}


def read_values(
    given: Mapping[str, Any], kinds: Mapping[str, type], owner: str, noun: str = "setting"
) -> dict[str, Any]:
    """The given values, texts or not, converted to the types in `kinds`. `owner` names in messages whose keys they
    are."""
    found: dict[str, Any] = {}
    for name, value in given.items():
        require_known(name, kinds, owner, noun)
        try:
            found[name] = read_value(value, kinds[name])
        except (ValueError, KeyError):
            raise UserError(f"{owner}: {name}={value} given, but it is {_TAKES[kinds[name]]}.") from None
    return found


def read_pairs(given: Sequence[str], option: str, of: Any) -> dict[str, Any]:
    """`["lr=0.01", …]` as fields of the dataclass `of`, with values of the right types."""
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
