"""What a model may take at most of each quantity, as given on a command line: `40ms`, `300MB`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from plait.core.units import parse
from plait.device.quantities import QUANTITIES, on_device, quantity


@dataclass(frozen=True, init=False)
class Limits:
    """Of quantities by name, in base units: `Limits(latency=0.04)`. Those of the device are predicted first and
    measured then; the others are exact."""

    values: tuple[tuple[str, float], ...]

    def __init__(self, **limits: float | None) -> None:
        for name in limits:
            QUANTITIES.require(name)
        given = ((name, limits[name]) for name in QUANTITIES if name in limits)
        object.__setattr__(self, "values", tuple((name, limit) for name, limit in given if limit is not None))

    @classmethod
    def read(cls, **texts: str | None) -> Limits:
        given = {name: text for name, text in texts.items() if text is not None}
        return cls(**{name: parse(text, quantity(name).dimension, name) for name, text in given.items()})

    @property
    def on_device(self) -> dict[str, float]:
        """Those that only a measurement can confirm."""
        return {name: limit for name, limit in self.values if name in on_device()}

    def constraints(self) -> list[str]:
        """For a search: a prediction must hold at the upper end of its interval."""
        return [f"{quantity(name).upper} <= {quantity(name).text(limit)}" for name, limit in self.values]

    def exceeded(self, values: Mapping[str, float]) -> list[str]:
        """In words, each limit that these values (in base units) go beyond."""
        return [
            f"{name} {quantity(name).text(values[name], 5)}, not {quantity(name).text(limit)}"
            for name, limit in self.values
            if name in values and values[name] > limit
        ]

    def as_dict(self) -> dict[str, float]:
        return dict(self.values)
