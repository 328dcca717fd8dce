"""The table of quantities, and that what iterates over it follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.core.units import UNITS
from plait.device.predictor import Predictor
from plait.device.profile import Profile
from plait.device.quantities import EXACT, QUANTITIES, Setting, everywhere, in_rows, on_device, quantities, quantity
from plait.model.architecture import architecture
from plait.space.objective_table import OBJECTIVES
from plait.space.space import COLUMNS


@pytest.mark.parametrize("each", quantities(), ids=list(QUANTITIES))
def test_a_line_says_all_there_is_to_know(each: object) -> None:
    line = quantity(each.name)  # type: ignore[attr-defined]
    assert line.unit in UNITS[line.dimension]
    assert QUANTITIES.load(line.name) is not None
    assert line.text(1 / line.scale) == f"1{line.unit}"
    assert (line.name in COLUMNS) == (line.predicted == EXACT)
    assert line.name in OBJECTIVES or line.predicted == EXACT


def test_names_columns_and_units() -> None:
    assert {name: each.column for name, each in on_device().items()} == {
        "latency": "latency_ms", "ttft": "ttft_ms", "token_time": "token_time_ms", "memory": "memory_mb",
        "energy": "energy_mj",
    }  # fmt: skip
    assert everywhere() == ["latency", "memory"]
    assert quantity("latency").scale == 1e3
    assert quantity("memory").shown(3e8) == "300 MB"
    assert list(in_rows([{"spec": ""}, {"energy_mj": {}}])) == ["energy"]


def test_what_adds_up_is_predicted_once_the_profile_has_it(machine: Any, fill: Callable[..., Profile]) -> None:
    """Energy in a fixed ratio to time, 3 W: predicted as latency is, with the models' own ratio to the parts' sum."""
    setting = Setting(seq=64)
    checks = [architecture(f"d={d} vocab=500 | mlp[inner=300] attn[heads=4]") for d in (64, 128, 256)]
    predictor = Predictor(fill(machine, setting, checks), setting)
    specs = ["d=128 vocab=500 | mlp[inner=512] mlp[inner=300]"]
    assert set(predictor.predict(specs)) == {"latency", "memory"}
    powered = replace(
        predictor.profile,
        points=[replace(p, others={"energy": (3 * p.seconds, p.noise)}) for p in predictor.profile.points],
    )
    again = Predictor(powered, predictor.setting).predict(specs)
    assert again["energy"].mean == pytest.approx(3 * again["latency"].mean, rel=1e-3)
    assert np.all(again["energy"].high > again["energy"].mean)
    some = replace(powered, points=[replace(p, others={}) if p.spec.startswith("mlp") else p for p in powered.points])
    with pytest.raises(UserError, match="no measurement of the energy of mlp"):
        Predictor(some, predictor.setting).predict(specs)
