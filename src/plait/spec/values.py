"""Values of options and header keys: `512`, `1_000`, `1e-5`, `true`, `bias-only`, `19997/39997/199997`.

Text and value map one to one (`19997/` is the list of one number), which is what makes the canonical text canonical.
"""

from __future__ import annotations

import math
import re

from plait.core.errors import UserError
from plait.spec.errors import MAX_DIGITS, MAX_INT, MAX_ITEMS, MAX_NAME, MAX_NUMBER, quoted

Value = bool | int | float | str | tuple[int, ...]

# ASCII only: \d and \w would let in digits and letters that look alike but are not.
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_INT = re.compile(r"[+-]?[0-9]+(?:_[0-9]+)*")
_FLOAT = re.compile(r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def parse_name(text: str) -> str:
    """A name in lower case: the language does not tell `Attn` from `attn`."""
    if not NAME.fullmatch(text):
        raise UserError(f"{quoted(text)} is not a name: names start with a letter, then letters, digits, - _ .")
    if len(text) > MAX_NAME:
        raise UserError(f"the name {quoted(text)} has {len(text)} characters; at most {MAX_NAME} are allowed")
    return text.lower()


def parse_int(text: str) -> int:
    """A whole number of bounded size; underscores may group its digits."""
    if not _INT.fullmatch(text):
        raise UserError(f"{quoted(text)} is not a whole number")
    if len(text) > MAX_DIGITS:
        raise UserError(f"the number {quoted(text)} has more than {MAX_DIGITS} digits")
    return _bounded(int(text))


def parse_value(text: str) -> Value:
    """The value written as `text`."""
    if "/" in text:
        # `7/` is a list of one; only that form may end with a slash.
        items = text[:-1].split("/") if text.count("/") == 1 and text.endswith("/") else text.split("/")
        if len(items) > MAX_ITEMS:
            raise UserError(f"a list of {len(items)} numbers; at most {MAX_ITEMS} are allowed")
        return tuple(parse_int(item) for item in items)
    if NAME.fullmatch(text):
        name = parse_name(text)
        return name == "true" if name in ("true", "false") else name
    if _INT.fullmatch(text):
        return parse_int(text)
    if not _FLOAT.fullmatch(text):
        raise UserError(f"{quoted(text)} is not a value: write a number, true, false, a name or a list (8/16/32)")
    if len(text) > MAX_NUMBER:
        raise UserError(f"the number {quoted(text)} has more than {MAX_NUMBER} characters")
    return _finite(float(text))


def format_value(value: Value) -> str:
    """The one text that `parse_value` turns back into exactly this value."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "/".join(map(str, value)) if len(value) > 1 else f"{value[0]}/"
    return value if isinstance(value, str) else repr(value)


def check_value(value: object) -> Value:
    """A Python object (from JSON, YAML or code) as a value, or a `UserError` that says what is allowed."""
    if isinstance(value, bool):
        return value
    if isinstance(value, int):
        return _bounded(int(value))
    if isinstance(value, float):
        return _finite(float(value))
    if isinstance(value, str):
        name = parse_name(value)
        if name in ("true", "false"):
            raise UserError(f"{quoted(value)} is text; give the truth value itself, without quotes")
        return name
    if isinstance(value, list | tuple):
        if not 1 <= len(value) <= MAX_ITEMS:
            raise UserError(f"a list takes 1 to {MAX_ITEMS} whole numbers, got {len(value)}")
        if any(isinstance(item, bool) or not isinstance(item, int) for item in value):
            raise UserError("a list takes whole numbers only")
        return tuple(_bounded(int(item)) for item in value)
    raise UserError(f"a value is a number, true, false, a name or a list of whole numbers, not {type(value).__name__}")


def _bounded(number: int) -> int:
    if abs(number) > MAX_INT:
        raise UserError(f"a whole number must lie within ±{MAX_INT:,}")
    return number


def _finite(number: float) -> float:
    if not math.isfinite(number):
        raise UserError("a number must be finite")
    return number
