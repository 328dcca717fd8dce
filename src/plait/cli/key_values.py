"""Options written as key=value: the fields of a dataclass, or plain pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from plait.core.errors import UserError, did_you_mean


def pairs(given: Sequence[str], option: str) -> dict[str, str]:
    """`d=256` and its like, as text."""
    found: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key or not value:
            raise UserError(f"{option} {text}: write key=value.")
        found[key.strip()] = value.strip()
    return found


def key_value(text: str, option: str, of: type[Any]) -> tuple[str, Any]:
    """`lr=0.01` as a key of the dataclass `of` with a value of its kind."""
    kinds: dict[str, Any] = {spec.name: type(spec.default) for spec in fields(of)}
    key, equals, value = text.partition("=")
    if not equals or key not in kinds:
        wrong = f"there is no key '{key}'" if equals else "write key=value"
        raise UserError(f"{option} {text}: {wrong}.{did_you_mean(key, kinds)} Keys: {', '.join(kinds)}.")
    try:
        if kinds[key] is tuple:
            return key, tuple(part for part in value.split("/") if part)
        return key, kinds[key](value)
    except ValueError:
        kind = "whole number" if kinds[key] is int else "number"
        raise UserError(f"{option} {text}: {key} takes a {kind}.") from None
