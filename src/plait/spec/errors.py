"""What a spec may not exceed. Every bound is checked before the work it bounds, so hostile text is refused at once.

Errors that show the place: the line with a caret for text, the path (`layers[3].heads`) for JSON and YAML.
"""

from __future__ import annotations

from dataclasses import dataclass

from plait.core.errors import UserError

MAX_TEXT = 200_000  # characters of a spec, canonical text included
MAX_JSON = 20 * MAX_TEXT  # JSON says the same at greater length; YAML is slow to read and gets MAX_TEXT
MAX_NESTING = 50  # parentheses within parentheses
MAX_LAYERS = 10_000  # after all groups are expanded
MAX_OPTIONS = 64  # a layer
MAX_ITEMS = 64  # numbers in a list value
MAX_NAME = 64  # characters of a name
MAX_NUMBER = 40  # characters of a number, before conversion
MAX_DIGITS = 30  # digits of a whole number, before conversion
MAX_INT = 10**12


_SHOWN = 100  # characters of a long source line shown around the caret


@dataclass(frozen=True)
class Where:
    """A place in the text, both counted from 1."""

    line: int
    column: int


class SpecError(UserError):
    """A spec that cannot be read: what is wrong, and where."""

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
    """A header that makes no sense. `keys` are the keys involved, the one to change first."""

    def __init__(self, message: str, *keys: str) -> None:
        super().__init__(message)
        self.message = message
        self.keys = keys

    def __reduce__(self) -> tuple[type[HeaderError], tuple[str, ...]]:
        return type(self), (self.message, *self.keys)


def quoted(text: str) -> str:
    """The user's own text for a message: on one line, short, and nothing a terminal would act on."""
    clipped = text if len(text) <= 40 else text[:39] + "…"
    return "'" + _printable(clipped) + "'"


def _excerpt(source: str, line: int, column: int) -> tuple[str, str]:
    """The source line and the caret line under it; a long line is cut to a window around the column."""
    content = source.split("\n")[line - 1].rstrip("\r")
    start = max(0, column - 1 - _SHOWN // 2)
    window = content[start : start + _SHOWN]
    ellipsis = "…" if start else ""
    return ellipsis + _printable(window), " " * (len(ellipsis) + column - 1 - start) + "^"


def _printable(text: str) -> str:
    return "".join(c if c.isprintable() else " " if c.isspace() else "�" for c in text)
