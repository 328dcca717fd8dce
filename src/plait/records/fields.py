"""The fields of nested JSON by dotted names: `task.name` is the `name` in `task`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def flat(document: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Every field that holds no other fields, by its dotted name. Lists stay whole.

    A name that has a dot of its own is quoted, so that no two fields share a name: `models."gpt2-1.5b".loss`.
    """
    found: dict[str, Any] = {}
    for plain, value in document.items():
        name = before + (json.dumps(plain) if "." in plain or '"' in plain else plain)
        if isinstance(value, Mapping) and value:
            found.update(flat(value, f"{name}."))
        else:
            found[name] = value
    return found


def matches(document: Mapping[str, Any], where: Mapping[str, Any]) -> bool:
    """Whether each of these fields is there and has its value."""
    fields = flat(document)
    return all(name in fields and _equal(fields[name], wanted) for name, wanted in where.items())


def _equal(value: Any, wanted: Any) -> bool:
    if isinstance(wanted, str) and not isinstance(value, str):
        try:
            wanted = json.loads(wanted)
        except ValueError:
            return False
    # Python holds True and 1 equal; JSON does not.
    return bool(value == wanted) and isinstance(value, bool) == isinstance(wanted, bool)
