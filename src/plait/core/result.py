"""Results of plait's functions: frozen dataclasses, and their display as text and in notebooks.

`as_dict()` is what `--json` prints, `rows()` the result as a table, `to_frame()` that table as a pandas DataFrame;
`print` shows it as text. A notebook displays a result as a `card`: a headline, a figure and a table. All text is
escaped; a figure is an SVG inside an image element, so that neither its style nor a name in it can affect the page.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from html import escape
from pathlib import Path
from reprlib import Repr
from types import NoneType
from typing import Any, ClassVar, TypeVar, get_args, get_origin, get_type_hints

from plait.core.errors import UserError
from plait.core.files import write_text

MOST_ROWS = 100
MOST_COLUMNS = 8  # of a single row; with more it is shown as a column
WIDEST = 12  # columns of a table
LONGEST = 120  # characters of a cell
SHORTENED = Repr()
SHORTENED.maxlevel, SHORTENED.maxdict, SHORTENED.maxstring, SHORTENED.maxother = 2, 3, LONGEST, LONGEST
CELL = "padding: 2px 12px 2px 0; vertical-align: top; text-align:"


def card(rows: Sequence[Mapping[str, Any]], *, headline: str = "", figure: str = "") -> str:
    """HTML of these parts. A long or wide table is truncated, with a line that states its full size."""
    parts = [f"<p><b>{escape(headline)}</b></p>"] if headline else []
    if figure:
        image = b64encode(figure.encode()).decode()
        style = "width: 100%; max-width: 760px"
        parts.append(
            f'<img style="{style}" alt="{escape(headline or "figure")}" src="data:image/svg+xml;base64,{image}">'
        )
    names = _columns(rows)
    shown = names if len(rows) == 1 else _telling(names, rows)
    if rows:
        parts.append(table([{name: row.get(name) for name in shown} for row in rows[:MOST_ROWS]]))
    left_out = [f"{MOST_ROWS} of {len(rows):,} rows"] if len(rows) > MOST_ROWS else []
    left_out += [f"{len(shown)} of {len(names)} columns"] if len(shown) < len(names) else []
    if left_out:
        parts.append(f"<p>{', '.join(left_out)}; to_frame() has all.</p>")
    return "".join(parts)


def _columns(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """The columns that have a value in any row."""
    return [
        name
        for name in dict.fromkeys(name for row in rows for name in row)
        if any(row.get(name) is not None for row in rows)
    ]


def _telling(names: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Sequence[str]:
    """For a table that is too wide: the columns with short values in which the rows differ."""
    if len(names) <= WIDEST:
        return names
    texts = {name: {_text(row.get(name)) for row in rows} for name in names}
    short = [name for name in names if max(map(len, texts[name])) < LONGEST]
    return [name for name in short if len(texts[name]) > 1][:WIDEST] or short[:WIDEST] or names[:WIDEST]


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """An HTML table. Columns without any value are left out; a single row of many columns is shown as two columns, the
    names and the values."""
    names = _columns(rows)
    if len(rows) == 1 and len(names) > MOST_COLUMNS:
        rows = [{"": name, " ": rows[0][name]} for name in names]
        names = ["", " "]
    numeric = {name for name in names if all(row.get(name) is None or _is_number(row[name]) for row in rows)}
    head = "".join(
        f'<th style="{CELL} {"right" if name in numeric else "left"}">{escape(str(name))}</th>' for name in names
    )
    body = "".join(f"<tr>{''.join(_cell(row.get(name)) for name in names)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """The table as plain text: numbers right-aligned, long cells truncated; a single row as two columns, names and
    values."""
    names = _columns(rows)
    if len(rows) == 1:
        cells = [[str(name), _cut(_text(rows[0][name]))] for name in names]
        right = [False, False]
    else:
        names = list(_telling(names, rows))
        cells = [[str(name) for name in names], *([_cut(_text(row.get(name))) for name in names] for row in rows)]
        right = [all(row.get(name) is None or _is_number(row[name]) for row in rows) for name in names]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = (
        "  ".join(cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(line, widths, right, strict=True))
        for line in cells
    )
    return "\n".join(line.rstrip() for line in lines)


def _cut(text: str) -> str:
    line = text.replace("\n", " ")
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 2].rstrip()} …"


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _cell(value: Any) -> str:
    side, text = "right" if _is_number(value) else "left", _text(value)
    if len(text) <= LONGEST:
        return f'<td style="{CELL} {side}">{escape(text)}</td>'
    return f'<td style="{CELL} {side}" title="{escape(text[: 10 * LONGEST])}">{escape(text[:LONGEST])} …</td>'


def _text(value: Any) -> str:
    if _is_number(value):
        return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(_text, value))
    return "" if value is None else str(value)


@dataclass(frozen=True)
class Result:
    ROWS: ClassVar[str] = ""  # the field with one item per row, if the result is a table

    def __init_subclass__(cls, **keywords: Any) -> None:
        """`dataclass` gives a class its own `__repr__`, of any length, unless there is one."""
        super().__init_subclass__(**keywords)
        if "__repr__" not in vars(cls):
            cls.__repr__ = Result.__repr__  # type: ignore[method-assign]

    def __repr__(self) -> str:
        """The fields, long ones cut: what a prompt shows must not scroll it away."""
        shown = (f"{f.name}={SHORTENED.repr(getattr(self, f.name))}" for f in fields(self) if f.repr)
        return f"{type(self).__name__}({', '.join(shown)})"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON: numbers, strings, lists, dicts."""
        return {f.name: plain(getattr(self, f.name)) for f in fields(self) if f.repr}

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per item, such as a model of a comparison; a result about one thing is one row."""
        if self.ROWS:
            return list(self.as_dict()[self.ROWS])
        return [{key: value for key, value in self.as_dict().items() if not isinstance(value, (dict, list))}]

    def to_frame(self) -> Any:
        """`rows()` as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_frame needs pandas: pip install pandas. `rows()` gives the same as dicts.") from None
        return pandas.DataFrame(self.rows())

    def headline(self) -> str:
        """The text above the table in a notebook; empty if the table is enough."""
        return ""

    def figure(self) -> str:
        """An SVG chart; empty if there is none."""
        return ""

    def save_svg(self, path: str | Path) -> None:
        """Write the chart to a file."""
        if not (chart := self.figure()):
            raise UserError(f"{path}: a {type(self).__name__} has no chart.")
        write_text(path, chart)

    def __str__(self) -> str:
        """What `print` shows: the headline and the table, as plain text."""
        return "\n".join(filter(None, (self.headline(), text_table(self.rows()))))

    def _repr_html_(self) -> str:
        try:
            figure = self.figure()
        except UserError:  # for example, a front with one objective has no chart
            figure = ""
        return card(self.rows(), headline=self.headline(), figure=figure)


def plain(value: Any) -> Any:
    """Results, dataclasses and collections of them as JSON."""
    if hasattr(type(value), "as_dict"):
        return value.as_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


R = TypeVar("R", bound="StoredResult")


@dataclass(frozen=True)
class StoredResult(Result):
    """A result that can be read back from what its `as_dict()` gave to a store or a file."""

    @classmethod
    def from_dict(cls: type[R], document: Mapping[str, Any]) -> R:
        """Fields that the document lacks have their defaults; what it has beyond the fields is left out."""
        hints = get_type_hints(cls)
        names = [f.name for f in fields(cls) if f.name in document]
        return cls(**{name: _typed(hints[name], document[name]) for name in names})


def _typed(kind: Any, value: Any) -> Any:
    inner = get_args(kind)
    if not inner:
        return kind.from_dict(value) if issubclass(kind, StoredResult) else value
    if NoneType in inner:
        return None if value is None else _typed(inner[0], value)
    if get_origin(kind) is tuple:
        kinds = inner[:1] * len(value) if inner[1] is ... else inner
        return tuple(_typed(*pair) for pair in zip(kinds, value, strict=True))
    if get_origin(kind) is dict:
        return {name: _typed(inner[1], entry) for name, entry in value.items()}
    return value
