"""What a verb of the front door gives back: a frozen dataclass that is plain data when asked.

`as_dict()` is what `--json` prints, `rows()` the table that a person would look at, `to_frame()` that table for pandas,
and a notebook shows it by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from html import escape
from typing import Any

from plait.core.errors import UserError


@dataclass(frozen=True)
class Result:
    def as_dict(self) -> dict[str, Any]:
        """Plain JSON: numbers, strings, lists, dicts."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.repr}

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per thing that was compared; a result of one thing is one row."""
        return [{key: value for key, value in self.as_dict().items() if not isinstance(value, (dict, list))}]

    def to_frame(self) -> Any:
        """`rows()` as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_frame needs pandas: pip install pandas. `rows()` gives the same as dicts.") from None
        return pandas.DataFrame(self.rows())

    def _repr_html_(self) -> str:
        rows = self.rows()
        names = list(dict.fromkeys(name for row in rows for name in row))
        head = "".join(f"<th>{escape(name)}</th>" for name in names)
        body = "".join(
            f"<tr>{''.join(f'<td>{escape(_shown(row.get(name)))}</td>' for name in names)}</tr>" for row in rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _plain(value: Any) -> Any:
    if hasattr(type(value), "as_dict"):
        return value.as_dict()
    if is_dataclass(value) and not isinstance(value, type):
        return {f.name: _plain(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(inner) for inner in value]
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    return str(value)


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else "" if value is None else str(value)
