"""Limits of specs, checked before the work that they bound, so that hostile text is refused immediately.

Errors show the position: the line with a caret for text, the path (`layers[3].heads`) for JSON and YAML.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.errors import UserError

MAX_TEXT = 200_000  # characters of a spec, including its canonical text
MAX_JSON = 20 * MAX_TEXT  # characters of JSON, which is more verbose; YAML is slow to parse and limited to MAX_TEXT
MAX_NESTING = 50  # levels of nested parentheses
MAX_LAYERS = 10_000  # after all groups are expanded
MAX_OPTIONS = 64  # options of a layer
MAX_ITEMS = 64  # numbers in a list value
MAX_NAME = 64  # characters of a name
MAX_NUMBER = 40  # characters of a number, before conversion
MAX_DIGITS = 30  # digits of an integer, before conversion
MAX_INT = 10**12


_SHOWN = 100  # characters of a long source line shown around the caret


@dataclass(frozen=True)
class Where:
    """A position in the text, line and column counted from 1."""

    line: int
    column: int


class SpecError(UserError):
    """A spec that cannot be parsed: what is wrong, and where."""

    def __init__(
        self,
        message: str,
        source: str | None = None,
        line: int | None = None,
        column: int | None = None,
        path: str | None = None,
    ) -> None:
        super().__init__(message, source, line, column, path)  # all of them, so that the error survives pickling
        self.message = message
        self.source = source
        self.line = line
        self.column = column
        self.path = path

    def __str__(self) -> str:
        if self.path:
            return f"spec: {self.path}: {self.message}"
        if self.source is None or self.line is None or self.column is None:
            return f"spec: {self.message}"
        shown, caret = _excerpt(self.source, self.line, self.column)
        return f"spec:{self.line}:{self.column}: {self.message}\n  {shown}\n  {caret}"


class HeaderError(UserError):
    """An inconsistent header. `keys` are the keys involved, the one to change first."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.message = message
        self.keys = keys

    def __reduce__(self) -> tuple[type[HeaderError], tuple[str, ...]]:
        return type(self), (self.message, *self.keys)


def quoted(text: str) -> str:
    """The user's own text for a message: on one line, short, and without terminal control characters."""
    clipped = text if len(text) <= 40 else text[:39] + "…"
    return "'" + _printable(clipped) + "'"


def _excerpt(source: str, line: int, column: int) -> tuple[str, str]:
    """The source line and the caret line under it; a long line is shortened to a window around the column."""
    content = source.split("\n")[line - 1].rstrip("\r")
    start = max(0, column - 1 - _SHOWN // 2)
    window = content[start : start + _SHOWN]
    ellipsis = "…" if start else ""
    return ellipsis + _printable(window), " " * (len(ellipsis) + column - 1 - start) + "^"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text)
