"""The result of a search: the candidates that no other beats in every objective, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from plait.core.errors import UserError

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Front:
    """Plain data; `as_dict` is JSON.

    objectives   {"objective": name, "maximise": …} in order
    rows         {"spec": text, then every column by name}, the best in the first objective first
    evaluated    candidates that satisfied every rule and were compared
    proposed     candidates that were drawn at all
    cost         {"seconds": …}
    """

    space: str
    method: str
    objectives: Sequence[Mapping[str, Any]]
    rows: Sequence[Row]
    evaluated: int
    proposed: int
    cost: Mapping[str, float]

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def specs(self) -> list[str]:
        return [row["spec"] for row in self.rows]

    def column(self, name: str) -> list[float]:
        if self.rows and name not in self.rows[0]:
            raise UserError(f"the front has no column '{name}'; it has {', '.join(self.rows[0])}.")
        return [row[name] for row in self.rows]

    def as_dict(self) -> dict[str, Any]:
        return {
            "space": self.space,
            "method": self.method,
            "objectives": [dict(objective) for objective in self.objectives],
            "front": [dict(row) for row in self.rows],
            "evaluated": self.evaluated,
            "proposed": self.proposed,
            "cost": dict(self.cost),
        }

    @classmethod
    def from_dict(cls, given: Mapping[str, Any]) -> Front:
        try:
            return cls(
                space=given["space"],
                method=given["method"],
                objectives=given["objectives"],
                rows=given["front"],
                evaluated=given["evaluated"],
                proposed=given["proposed"],
                cost=given["cost"],
            )
        except KeyError as missing:
            raise UserError(f"this is not a front: it has no field {missing}.") from None
