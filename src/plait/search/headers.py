"""The headers that a space's candidates may have: every choice of the keys that vary, and what the others say."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.search.declaration import Declaration
from plait.spec import Header, parse
from plait.spec.errors import HeaderError
from plait.spec.header import coerce
from plait.spec.values import Value


class Headers:
    """`choices` has the values of every key that varies, the width d first."""

    def __init__(self, declared: Declaration) -> None:
        if "d" in declared.vary:
            raise UserError(f"{declared.name}: give the widths as d, not among the header keys that vary.")
        self.base = parse(f"{declared.header} | identity").header
        self.choices = {key: _coerced(declared.name, key, given) for key, given in declared.header_choices().items()}
        rows = itertools.product(*self.choices.values())
        self.all = [_header_or_none(self.base, dict(zip(self.choices, row, strict=True))) for row in rows]
        if not any(self.all):
            keys = ", ".join(self.choices)
            raise UserError(f"{declared.name}: no choice of {keys} gives a header that makes sense.")
        self.legal = np.array([header is not None for header in self.all])
        given = {f.name: getattr(self.base, f.name) for f in dataclasses.fields(self.base)}
        #: The numbers that are the same for all.
        self.fixed = {k: v for k, v in given.items() if isinstance(v, int | float) and k not in self.choices}

    @property
    def positions(self) -> float:
        """Tokens that every candidate can take: the fewest learned positions among them."""
        return min((h.max_len for h in self.all if h is not None and h.pos == "learned"), default=math.inf)

    def codes(self, chosen_NH: NDArray[np.int16]) -> NDArray[np.int64]:
        """Where in `all` the headers stand whose keys have these values."""
        sizes = [len(values) for values in self.choices.values()]
        return np.asarray(np.ravel_multi_index(tuple(chosen_NH.T), sizes))

    def values(self, key: str, chosen_NH: NDArray[np.int16]) -> NDArray[Any]:
        return np.array(self.choices[key])[chosen_NH[:, list(self.choices).index(key)]]

    def of_width(self, d: int) -> int:
        """How many headers have this width."""
        return sum(header is not None and header.d == d for header in self.all)


def _coerced(space: str, key: str, given: tuple[Value, ...]) -> tuple[Value, ...]:
    """The values as a header holds them. One that no header could hold is a mistake, whatever the others are."""
    try:
        return tuple(coerce(key, value) for value in given)
    except HeaderError as wrong:
        raise UserError(f"{space}: {wrong}") from None


def _header_or_none(base: Header, values: dict[str, Any]) -> Header | None:
    try:
        return base.replace(values)
    except HeaderError:
        return None
