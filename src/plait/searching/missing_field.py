"""Inferring a column that a published table lacks from a parameter count that it has, by costing every possible value.

An earlier version of LiteTransformerSearch (Javaheripi et al. 2022, arXiv:2203.02094, Table 3) does not print d_model,
but heads, inner widths and decoder parameters in millions, and usually only one width gives that count. A row is turned
into a spec by a template with columns in braces:

    d={d_model} vocab=267735 | xl-attn[heads={n_head},head_dim=64] mlp[inner={d_inner}]

If a column is a list, the template's layers are repeated for every entry.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from plait.analysis.table import Table
from plait.core.errors import UserError
from plait.core.files import loads
from plait.core.registry import require_known
from plait.model.architecture import architecture
from plait.model.cost import ModelCost, model_cost

COUNTS = ("decoder_params", "total_params", "active_params", "embedding_params")
UNIQUE, AMBIGUOUS, NONE = "unique", "ambiguous", "none"
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class Inferred:
    """The values of one row that give the printed count; none if the row contains another mistake."""

    row: int
    values: tuple[int, ...]
    counts: tuple[int, ...]

    @property
    def verdict(self) -> str:
        return NONE if not self.values else UNIQUE if len(self.values) == 1 else AMBIGUOUS


@dataclass(frozen=True)
class MissingField:
    """`printed`: the column with the count, in units of `unit`; `quantity`: the name of that count in plait.

    A value fits if the count, rounded like the column, equals the printed one. `allowance` is a tolerance in parameters
    for papers that are known to count differently.
    """

    table: Table
    template: str
    field: str
    values: Sequence[int]
    printed: str
    unit: float = 1e6
    quantity: str = "decoder_params"
    allowance: float = 0.0

    def __post_init__(self) -> None:
        require_known(self.quantity, COUNTS, "no parameter count")
        named = _FIELD.findall(self.template)
        if self.field not in named:
            raise UserError(f"the template has no {{{self.field}}}, the field to infer: {self.template}")
        for name in named:
            if name != self.field:
                self.table.column(name)  # raises an error that names the nearest column
        if not self.values:
            raise UserError(f"give the values that {self.field} may have, such as 128..960 step 64.")

    @cached_property
    def half_digit(self) -> float:
        """Half of the last printed digit, in parameters: 0.05 M for 5.2."""
        texts = (repr(value) for value in self.table.column(self.printed) if value is not None)
        digits = max((len(text.partition(".")[2]) for text in texts if "e" not in text), default=0)
        return 0.5 * 10.0**-digits * self.unit

    def infer(self) -> list[Inferred]:
        """The fitting values of every row of the table."""
        return [self._row(at) for at in range(len(self.table))]

    def _row(self, at: int) -> Inferred:
        known = {name: _entry(column[at]) for name, column in self.table.columns.items()}
        target = self.table.numbers(self.printed)[at] * self.unit
        slack = self.half_digit * (1 + 1e-6) + self.allowance
        fitting: dict[int, int] = {}
        for value in self.values:
            count = self._count({**known, self.field: value})
            if count is not None and abs(count - target) <= slack:
                fitting[value] = count
        return Inferred(at, tuple(fitting), tuple(fitting.values()))

    def _count(self, row: Mapping[str, Any]) -> int | None:
        """The count of a row; None if it is not a valid model, for example if heads do not divide the width."""
        spec = filled(self.template, row)
        try:
            cost: ModelCost = model_cost(architecture(spec))
        except UserError:
            return None
        return int(getattr(cost, self.quantity))

    def check(self) -> None:
        """Raise a `UserError` if no value makes the first row a valid spec: then the template is wrong."""
        row = {name: _entry(column[0]) for name, column in self.table.columns.items()}
        mistakes = [self._mistake({**row, self.field: value}) for value in self.values]
        if all(mistakes):
            raise UserError(f"the template makes no spec of the first row: {mistakes[-1]}")

    def _mistake(self, row: Mapping[str, Any]) -> str:
        """Why the row is not a valid spec; empty if it is."""
        try:
            architecture(filled(self.template, row))
        except UserError as wrong:
            return str(wrong)
        return ""


def filled(template: str, row: Mapping[str, Any]) -> str:
    """The spec of a row. Lists, all of one length, repeat the layers entry by entry."""
    header, bar, layers = template.rpartition("|")
    lists = {name: row[name] for name in _FIELD.findall(layers) if isinstance(row[name], list)}
    lengths = {len(entries) for entries in lists.values()}
    if len(lengths) > 1:
        listing = ", ".join(f"{name} has {len(entries)}" for name, entries in lists.items())
        raise UserError(f"a row's lists differ in length: {listing} entries.")
    repeats = lengths.pop() if lengths else 1
    entries = [{**row, **{name: values[i] for name, values in lists.items()}} for i in range(repeats)]
    return _substituted(header, row) + bar + " ".join(_substituted(layers, entry) for entry in entries)


def _substituted(text: str, row: Mapping[str, Any]) -> str:
    return _FIELD.sub(lambda name: str(row[name[1]]), text)


def _entry(value: Any) -> Any:
    """A cell's value; lists in a CSV are text, "[2, 4]" or "2 4 8"."""
    if not isinstance(value, str):
        return value
    text = value.strip()
    if text.startswith("["):
        try:
            return loads(text)
        except json.JSONDecodeError:
            return value
    parts = text.split()
    return [int(part) for part in parts] if len(parts) > 1 and all(part.isdecimal() for part in parts) else value
