"""What a model may take on the device at most, as given on a command line: `40ms`, `300MB`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from plait.core.units import megabytes, milliseconds, parse


@dataclass(frozen=True)
class Limits:
    """Seconds and bytes; `state` is of one sequence and exact, the others are predicted first and measured then."""

    latency: float | None = None
    memory: float | None = None
    state: float | None = None

    @classmethod
    def read(cls, latency: str | None = None, memory: str | None = None, state: str | None = None) -> Limits:
        given = {"latency": (latency, "seconds"), "memory": (memory, "bytes"), "state": (state, "bytes")}
        return cls(**{name: parse(text, unit, name) for name, (text, unit) in given.items() if text is not None})

    @property
    def on_device(self) -> dict[str, float]:
        """Those that only a measurement can confirm."""
        both = {"latency": self.latency, "memory": self.memory}
        return {name: limit for name, limit in both.items() if limit is not None}

    def constraints(self) -> list[str]:
        """For a search: a prediction must hold at the upper end of its interval."""
        found = [f"{name}_high <= {_text(name, limit)}" for name, limit in self.on_device.items()]
        return found if self.state is None else [*found, f"state <= {_text('state', self.state)}"]

    def exceeded(self, values: Mapping[str, float]) -> list[str]:
        """In words, each limit that these values (in seconds and bytes) go beyond."""
        return [
            f"{name} {_text(name, values[name], 5)}, not {_text(name, limit)}"
            for name, limit in self.as_dict().items()
            if name in values and values[name] > limit
        ]

    def as_dict(self) -> dict[str, Any]:
        return {name: limit for name, limit in vars(self).items() if limit is not None}


def _text(name: str, value: float, digits: int = 6) -> str:
    return milliseconds(value, digits) if name == "latency" else megabytes(value, digits)
