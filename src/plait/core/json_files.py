"""Reading JSON files that may be damaged or hostile: whatever is wrong becomes one `UserError` that names the file.

`parse_json` and `read_json` refuse text that is not JSON, is nested too deeply, or holds numbers that a computer number
cannot represent (NaN, infinities, hundreds of digits). `understood` wraps the code that interprets a document: a field
that is missing or of the wrong type becomes the same kind of message instead of a traceback.

A document may carry its own checksum in the field `checksum`: `sealed` adds it, `unsealed` checks and removes it.
Documents written before there were checksums have none and are accepted as they are.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from plait.core.errors import UserError

CHECKSUM = "checksum"
DIGITS = 16  # hex digits of a checksum
MOST_DIGITS = 300  # of a number


def loads(text: str | bytes, *, constants: bool = False) -> Any:
    """Like `json.loads`, but every problem is a `JSONDecodeError`, also too deep nesting and numbers that are refused.
    NaN and infinities are accepted with `constants`."""
    try:
        if constants:
            return json.loads(text, parse_int=_int)
        return json.loads(text, parse_int=_int, parse_float=_float, parse_constant=_refuse_constant)
    except json.JSONDecodeError:
        raise
    except RecursionError:
        raise json.JSONDecodeError("it is nested too deeply", "", 0) from None
    except ValueError as wrong:
        raise json.JSONDecodeError(str(wrong), "", 0) from None


def parse_json(text: str | bytes, name: str, *, constants: bool = False) -> Any:
    """The document in this text. `name` says in messages where the text comes from."""
    try:
        return loads(text, constants=constants)
    except json.JSONDecodeError as wrong:
        raise UserError(f"{name} cannot be read: no JSON in line {wrong.lineno}: {wrong.msg}.") from None


def read_json(path: Path, *, constants: bool = False) -> Any:
    """The document in a file; a `UserError` where it cannot be read."""
    return parse_json(read_text(path), str(path), constants=constants)


def read_object(path: Path, *, constants: bool = False) -> dict[str, Any]:
    """The object in a file that must hold one JSON object."""
    found = read_json(path, constants=constants)
    if not isinstance(found, dict):
        raise UserError(f"{path} cannot be read: it should hold an object, not a {type(found).__name__}.")
    return found


def read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise UserError(f"{path} cannot be read: it is not UTF-8 text.") from None
    except (OSError, MemoryError, ValueError) as wrong:
        raise UserError(f"{path} cannot be read: {getattr(wrong, 'strerror', None) or wrong}.") from None


@contextmanager
def understood(name: str, then: str = "") -> Iterator[None]:
    """Around code that interprets a document: a missing field or a value of the wrong type becomes a `UserError` that
    calls `name` damaged. `then` tells the user what to do about it."""
    try:
        yield
    except UserError:
        raise
    except KeyError as missing:
        raise UserError(f"{name} is damaged: it has no {missing}. {then}".rstrip()) from missing
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError, RecursionError) as wrong:
        raise UserError(f"{name} is damaged: {wrong}. {then}".rstrip()) from wrong


# ---- checksums


def checksum(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def sealed(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with its checksum."""
    return {**document, CHECKSUM: _checksum_of(document)}


def unsealed(document: dict[str, Any], name: str, then: str = "") -> dict[str, Any]:
    """The document without its checksum, which must be right where there is one."""
    rest = {field: value for field, value in document.items() if field != CHECKSUM}
    if CHECKSUM in document and document[CHECKSUM] != _checksum_of(rest):
        raise UserError(f"{name} is damaged: its checksum is not the one written down. {then}".rstrip())
    return rest


def _checksum_of(document: Mapping[str, Any]) -> str:
    return checksum(json.dumps(document, sort_keys=True, separators=(",", ":")))


# ---- numbers


def _int(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise ValueError(f"a number of {len(text)} digits")
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"the number {text[:20]} is too large")
    return value


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is no number in JSON")
