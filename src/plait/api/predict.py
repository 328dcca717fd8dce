"""Latency and memory on a profiled machine, without running anything: `plait.predict`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.arguments import read_specs
from plait.api.describe import load_mixers
from plait.core.result import Result
from plait.device.setting import Setting

if TYPE_CHECKING:
    from plait.model.architecture import Architecture


@dataclass(frozen=True)
class Estimate:
    """With its 95 % interval."""

    mean: float
    interval: tuple[float, float]


@dataclass(frozen=True)
class PredictedModel:
    """`quantities` by column, in the unit that its name says: latency_ms, memory_mb …"""

    spec: str
    quantities: dict[str, Estimate]

    def as_dict(self) -> dict[str, Any]:
        found = {name: {"mean": one.mean, "interval": list(one.interval)} for name, one in self.quantities.items()}
        return {"spec": self.spec, **found}

    def row(self) -> dict[str, Any]:
        return {"spec": self.spec, **{name: one.mean for name, one in self.quantities.items()}}


@dataclass(frozen=True)
class PredictResult(Result):
    setting: Setting
    profile: dict[str, Any]  # which machine, and how much was measured there
    models: tuple[PredictedModel, ...]

    def rows(self) -> list[dict[str, Any]]:
        return [model.row() for model in self.models]


def predict(
    specs: str | Architecture | Sequence[str | Architecture],
    profile: str | Path,
    *,
    seq_len: int = 192,
    batch: int = 1,
    mode: str = "prefill",
    anywhere: bool = False,
    mixers: Sequence[str | Path] = (),
) -> PredictResult:
    """Predict from a profile (a file of `plait.profile`), with 95 % intervals; `anywhere`: it may be another
    machine's."""
    from plait.device.predictor import Predictor
    from plait.device.profile import Profile
    from plait.device.quantities import quantity

    load_mixers(mixers)
    archs, read = read_specs(specs), Profile.load(Path(profile), anywhere=anywhere)
    predictor = Predictor(read, Setting(mode=mode, seq=seq_len, batch=batch))
    found = {quantity(name): each for name, each in predictor.predict(archs).items()}
    models = []
    for index, arch in enumerate(archs):
        estimates = {}
        for of, each in found.items():
            mean, low, high = (of.scale * float(column[index]) for column in (each.mean, each.low, each.high))
            estimates[of.column] = Estimate(mean, (low, high))
        models.append(PredictedModel(arch.text, estimates))
    return PredictResult(predictor.setting, read.describe(), tuple(models))
