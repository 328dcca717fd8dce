"""The profile of a device: its raw measurements, in a portable file.

No fitted parameters are stored, so a better regression makes better predictions from the same file.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import plait
from plait.core.errors import UserError
from plait.core.files import loads, sealed, understood, unsealed, write_text
from plait.device.quantities import Setting
from plait.records import provenance_of

FORMAT = "plait-profile"
VERSION = 1
#: What must agree for two machines to count as the same; new versions of plait or Python matter little.
SAME = ("system", "cpu", "cores", "gpu", "torch")


@dataclass(frozen=True)
class Point:
    """One measurement.

    what         `layer` (text in `spec`, at width `d` behind a `norm`), `outside` (`spec` is a header: what is around
                 the layers) or `model` (`spec` is a whole architecture, measured to check what is composed)
    seconds      of one layer, or of all
    noise        half the 95 % interval over `seconds`, and the spread of the repeats
    activations  bytes held at the peak beyond weights and, for a model, state
    memory       bytes at the peak, for `outside` and `model`; 0 for a layer
    source       hashes of the users' mixers in it
    others       of quantities that only some machines can tell: value of one layer, or of all, and half the 95 %
                 interval over it
    """

    what: str
    spec: str
    d: int
    norm: str
    mode: str
    seq: int
    batch: int
    seconds: float
    noise: float
    noisy: bool
    activations: int
    memory: int = 0
    source: str = ""
    others: dict[str, tuple[float, float]] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        return {name: value for name, value in asdict(self).items() if name not in ("source", "others") or value}

    @property
    def heading(self) -> str:
        """What was measured, for readers: `outside` is a word of the files."""
        return f"{'embedding and head of' if self.what == 'outside' else self.what} {self.spec}"

    def value(self, column: str) -> tuple[float, float]:
        """A quantity by name, or `activations`; and its relative uncertainty in either direction."""
        if column == "activations":
            return float(self.activations), 0.0
        return (self.seconds, self.noise) if column == "latency" else self.others[column]

    def has(self, column: str) -> bool:
        return column in ("activations", "latency") or column in self.others

    def setting(self, common: dict[str, Any]) -> Setting:
        return Setting(mode=self.mode, seq=self.seq, batch=self.batch, **common)

    @classmethod
    def from_dict(cls, entry: dict[str, Any]) -> Point:
        """The inverse of `as_dict`, for data read from a file: checks every field's type and every number's range."""
        kinds: dict[str, Any] = {"str": str, "int": int, "bool": bool, "float": (int, float)}
        point = cls(**entry)
        for column in fields(cls):
            value, kind = getattr(point, column.name), kinds.get(str(column.type))
            if kind is None:
                others = {name: tuple(map(float, pair)) for name, pair in value.items()}
                if any(len(pair) != 2 for pair in others.values()):
                    raise ValueError(f"{column.name} of a point is {value!r}")
            elif not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
                raise TypeError(f"{column.name} of a point is {str(value)[:40]!r}")
            elif kind not in (str, bool) and not 0 <= value < 1e18:
                raise ValueError(f"{column.name} of a point is {str(value)[:40]}")
        if point.what not in ("layer", "outside", "model") or not point.seconds or point.d < 1:
            raise ValueError(
                f"a point is not a measurement: {point.what} of {point.seconds} seconds at width {point.d}"
            )
        return point


OnPoint = Callable[[Point, float], object]  # a new point, and the elapsed fraction of the time


@dataclass
class Profile:
    """`common` contains what all points share: device, dtype, threads."""

    device: dict[str, Any]
    common: dict[str, Any]
    points: list[Point] = field(default_factory=list)
    made: str = ""
    seconds: float = 0.0

    @classmethod
    def here(cls, setting: Setting) -> Profile:
        """An empty profile for this machine."""
        surroundings: Mapping[str, Any] = provenance_of(0.0, 0.0)
        common = {name: getattr(setting, name) for name in ("device", "dtype", "threads")}
        return cls({name: surroundings[name] for name in (*SAME, "python", "plait")}, common)

    @classmethod
    def load(cls, path: Path | str, *, anywhere: bool = False) -> Profile:
        """Read a profile; one of another machine is refused unless `anywhere`."""
        text = _text(Path(path))
        with understood(str(path)):
            read = loads(text)
            if read.get("format") != FORMAT:
                raise UserError(f"{path} is not a profile; make one with `plait profile -o {path}`.")
            if read["version"] > VERSION:
                raise UserError(f"{path} was made by a newer plait (profile version {read['version']}).")
            read = unsealed(read, str(path))
            points = [Point.from_dict(point) for point in read["points"]]
            profile = cls(dict(read["device"]), dict(read["common"]), points, str(read["made"]), float(read["seconds"]))
            for point in points:
                point.setting(profile.common)
        if not anywhere:
            profile.require_here(str(path))
        return profile

    def save(self, path: Path | str) -> None:
        """Write the file atomically: a killed process leaves the old file intact."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "device": self.device,
            "common": self.common,
            "made": self.made,
            "seconds": round(self.seconds, 1),
            "points": [point.as_dict() for point in self.points],
        }
        write_text(path, json.dumps(sealed(document), indent=1) + "\n", "the profile ")

    def require_here(self, name: str) -> None:
        here = Profile.here(Setting()).device
        # A GPU is visible only after torch was imported; a profile of a CPU does not depend on it.
        compared = [key for key in SAME if key != "gpu" or (self.common["device"] != "cpu" and here["gpu"])]
        other = [
            f"{key} {self.device.get(key)}, not {here[key]}" for key in compared if self.device.get(key) != here[key]
        ]
        if other:
            raise UserError(
                f"{name} is a profile of another machine ({'; '.join(other)}). Make one here with `plait profile`, "
                "or pass --anywhere to predict for that machine."
            )

    @property
    def hash(self) -> str:
        text = json.dumps([self.device, self.common, [point.as_dict() for point in self.points]], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def of(self, what: str) -> list[Point]:
        return [point for point in self.points if point.what == what]

    def describe(self) -> dict[str, Any]:
        """Everything but the points, as plain JSON."""
        counts = {what: len(self.of(what)) for what in ("layer", "outside", "model")}
        noisy = sum(point.noisy for point in self.points)
        return {
            "hash": self.hash,
            "machine": self.device,
            **self.common,
            "made": self.made,
            "seconds": round(self.seconds, 1),
            "points": {**counts, "noisy": noisy},
            "plait": plait.__version__,
        }


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as wrong:
        why = wrong.strerror if isinstance(wrong, OSError) else "it is not UTF-8 text"
        remedy = "" if os.path.isdir(path) else f" Make one with `plait profile -o {path}`."
        raise UserError(f"the profile {path} cannot be read: {why}.{remedy}") from None
