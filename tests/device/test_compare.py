"""Two machines beside each other."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from plait.device.predictor import compare
from plait.device.profile import Profile
from plait.device.quantities import Setting


def test_a_machine_half_as_fast(machine: Any, fill: Callable[..., Profile]) -> None:
    fast, slow = fill(machine, Setting()), fill(type(machine)(speed=0.5), Setting())
    ratios = {ratio.kind: ratio for ratio in compare(fast, slow)}
    assert set(ratios) == {"attn", "mlp", "outside"}
    for ratio in ratios.values():
        assert ratio.median == pytest.approx(2, rel=0.02)
        assert ratio.low <= ratio.median <= ratio.high


def test_nothing_in_common(machine: Any, fill: Callable[..., Profile]) -> None:
    assert compare(fill(machine, Setting()), fill(machine, Setting(mode="decode"))) == []
