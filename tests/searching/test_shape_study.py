"""Shapes of one size: what is drawn, that nothing is measured twice, and what is read back from the store."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.cli.analyse import group
from plait.core.errors import UserError
from plait.device import latency, memory
from plait.device.latency import Timing
from plait.device.memory import Memory
from plait.device.quantities import Setting
from plait.model.architecture import Architecture
from plait.model.cost import model_cost
from plait.records import Store
from plait.studies.proxies import study_space
from plait.studies.shapes import KIND, ShapeStudy


class Bench:
    """A machine whose latency is 1 ms a layer, and whose memory is a megabyte for every 16 of width."""

    def __init__(self) -> None:
        self.measured: list[str] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def latency(self, arch: Architecture, setting: Setting) -> Timing:
        self.measured.append(arch.text)
        seconds = 1e-3 * len(arch.layers) / 2
        return Timing(seconds, 0.99 * seconds, 1.01 * seconds, 0.01, 9, 1.0, 0.0, 0.5, False)

    def measure(self, arch: Architecture, setting: Setting) -> Memory:
        return Memory(arch.header.d * 62_500, 0, 0, 0)


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(memory, "MemoryMeter", lambda: made)
    monkeypatch.setattr(latency, "measure_latency", made.latency)
    return made


def test_one_size_and_many_shapes(bench: Bench, store: Store, tmp_path: Path) -> None:
    study = ShapeStudy(study_space("study-gpt2"), Setting(seq=32), models=5)
    sizes = [model_cost(arch).decoder_params for arch in study.archs]
    assert max(sizes) / min(sizes) <= 1.01 / 0.99
    found = study.run(store, tmp_path)
    aspects = [row["aspect"] for row in found.rows]
    assert aspects == sorted(aspects)
    assert aspects[-1] / aspects[0] > 4
    depths, widths = ([row[name] for row in found.rows] for name in ("n_layer", "d_model"))
    spread = found.as_dict()["spread"]
    assert spread["latency_ms"] == pytest.approx(max(depths) / min(depths))
    assert spread["memory_mb"] == pytest.approx(max(widths) / min(widths))
    assert len(bench.measured) == 5
    assert study.run(store, tmp_path).rows == found.rows
    assert len(bench.measured) == 5, "found in the store"
    assert store.kinds() == {"measure": 5, KIND: 5}
    asked = ["aspect", store.url, "--where", f"kind={KIND}", "--width", "result.d_model", "--depth", "result.n_layer",
             "--size", "result.decoder_params", "--metrics", "result.latency_ms", "--json", "--tolerance",
             "0.03"]  # fmt: skip
    read = json.loads(CliRunner().invoke(group, asked, catch_exceptions=False).stdout)
    assert read["largest"]["result.latency_ms"] == pytest.approx(spread["latency_ms"])


def test_a_size_that_is_asked_for() -> None:
    study = ShapeStudy(study_space("study-gpt2"), Setting(seq=32), models=3, params=150_000, tolerance=0.02)
    assert all(abs(model_cost(arch).decoder_params / 150_000 - 1) <= 0.02 for arch in study.archs)
    with pytest.raises(UserError, match=r"gave 0 models of 9,000,000,000 decoder parameters"):
        _ = ShapeStudy(study_space("study-gpt2"), Setting(seq=32), params=9e9).archs
    with pytest.raises(UserError, match="at least 2 models"):
        ShapeStudy(study_space("study-gpt2"), Setting(), models=1)
