"""Two profiles beside each other: how much slower is the one machine than the other, kind by kind of layer?"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from plait.device.predictor import Predictor
from plait.device.profile import Profile
from plait.device.setting import MODES, Setting


@dataclass(frozen=True)
class Ratio:
    """Seconds on the second machine over seconds on the first, of the parts that the first was measured on."""

    kind: str
    mode: str
    parts: int
    median: float
    low: float  # 5th and 95th percentile over the parts
    high: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def compare(first: Profile, second: Profile) -> list[Ratio]:
    """Kinds that both have. What the second has not measured itself it predicts."""
    found = []
    for mode in MODES:
        one, other = (Predictor(profile, Setting(mode=mode)) for profile in (first, second))
        for kind in one.kinds:
            if kind in other.kinds:
                points, features = zip(*one.measured(kind), strict=True)
                ratios = other.seconds_of(kind, features) / np.array([point.seconds for point in points])
                low, middle, high = (float(value) for value in np.quantile(ratios, (0.05, 0.5, 0.95)))
                found.append(Ratio(kind, mode, len(points), middle, low, high))
    return found
