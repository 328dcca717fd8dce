"""The parts of models, measured for real on a small scale."""

from __future__ import annotations

from typing import Any

import pytest

from plait.device.latency import Timing
from plait.device.profiling import COPIES, PartMeter
from plait.device.quantities import Setting
from plait.mixers.table import load
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.spec import Header

SETTING = Setting(seq=32)


@pytest.fixture
def parts(meter: Any) -> PartMeter:
    return PartMeter(SETTING, meter)


def test_a_layer(parts: PartMeter) -> None:
    point = parts.layer(64, load("mlp")(inner=256), "layer", SETTING)
    assert (point.what, point.spec, point.d, point.norm) == ("layer", "mlp[inner=256]", 64, "layer")
    assert 1e-6 < point.seconds < 0.05
    # Input, norm, up and its activation are alive together.
    assert point.activations == pytest.approx(4 * 32 * (64 + 64 + 256 + 256), rel=0.25)


def test_a_layer_is_one_of_its_copies(parts: PartMeter) -> None:
    """Eight narrow layers in a row are timed together; the time is that of one."""
    narrow = parts.layer(64, load("mlp")(inner=64), "rms", SETTING)
    wide = parts.layer(64, load("mlp")(inner=16384), "rms", SETTING)
    assert narrow.seconds < wide.seconds / 8


def test_outside(parts: PartMeter) -> None:
    header = Header(d=64, vocab=3000)
    point = parts.embedding_and_head(header, SETTING)
    assert (point.what, point.spec) == ("outside", header.text)
    assert point.activations >= 4 * 32 * 3000


def test_a_model(parts: PartMeter) -> None:
    arch = architecture("d=64 vocab=100 | attn[heads=2] mlp")
    point = parts.model(arch, SETTING)
    assert (point.spec, point.activations) == (arch.text, 3)
    assert point.memory == 4 * model_cost(arch).total_params + 5


def test_a_decoding_step(parts: PartMeter) -> None:
    point = parts.layer(64, load("attn")(), "rms", Setting(mode="decode", seq=200))
    # Keys and values are copied into the new state.
    assert point.activations == pytest.approx(2 * 4 * 201 * 64, rel=0.2)


def test_a_layer_takes_its_share_of_the_copies_and_half_of_the_interval(
    parts: PartMeter, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing = Timing(seconds=0.8, low=0.72, high=0.88, spread=0, repeats=9, calm=1, drift=0, load=0, noisy=False)
    monkeypatch.setattr(parts._watch, "time", lambda *_, **__: timing)
    point = parts.layer(16, load("mlp")(inner=16), "rms", SETTING)
    assert point.seconds == pytest.approx(0.8 / COPIES[0][1])
    assert point.noise == pytest.approx(0.1)
