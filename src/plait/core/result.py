"""The base class of what the functions of `plait` return: a frozen dataclass.

`as_dict()` is what `--json` prints, `rows()` the table that a person would look at, `to_frame()` that table as a pandas
DataFrame; a notebook displays a result by itself.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from typing import Any

from plait.core.display import card
from plait.core.errors import UserError


@dataclass(frozen=True)
class Result:
    def as_dict(self) -> dict[str, Any]:
        """Plain JSON: numbers, strings, lists, dicts."""
        return {f.name: _plain(getattr(self, f.name)) for f in fields(self) if f.repr}

    def rows(self) -> list[dict[str, Any]]:
        """One flat row per item, such as a model of a comparison; a result about one thing is one row."""
        return [{key: value for key, value in self.as_dict().items() if not isinstance(value, (dict, list))}]

    def to_frame(self) -> Any:
        """`rows()` as a pandas DataFrame."""
        try:
            import pandas
        except ImportError:
            raise UserError("to_frame needs pandas: pip install pandas. `rows()` gives the same as dicts.") from None
        return pandas.DataFrame(self.rows())

    def headline(self) -> str:
        """The text above the table in a notebook; empty where the table is enough."""
        return ""

    def picture(self) -> str:
        """An SVG chart; empty where there is none."""
        return ""

    def _repr_html_(self) -> str:
        try:
            picture = self.picture()
        except UserError:  # such as a front of one objective: the table is there all the same
            picture = ""
        return card(self.rows(), headline=self.headline(), picture=picture)


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
