"""Peak memory in a process of its own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files
from pathlib import Path

import pytest

from plait.core.errors import UserError
from plait.device.memory import MemoryMeter
from plait.device.quantities import Setting
from plait.mixers.table import register
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.model.user_mixers import load_mixer

SMALL = architecture("d=128 vocab=20000 tie=true | attn[heads=2] mlp[inner=256]")
LARGE = architecture("d=512 vocab=20000 | attn[heads=2] mlp")
MB = 1e6


@pytest.fixture(scope="module")
def meter() -> Iterator[MemoryMeter]:
    with MemoryMeter() as made:
        yield made


def test_parts_add_up(meter: MemoryMeter) -> None:
    found = meter.measure(SMALL, Setting(seq=128))
    cost = model_cost(SMALL, seq=128)
    assert found.weights == pytest.approx(4 * cost.total_params, rel=1e-3)
    assert found.state == pytest.approx(cost.state_bytes(), rel=1e-3)
    assert found.peak == found.weights + found.state + found.activations
    logits = 4 * 128 * 20000
    assert logits < found.activations < logits + 12 * MB


def test_one_model_leaves_nothing_behind_for_the_next(meter: MemoryMeter) -> None:
    alone = meter.measure(SMALL, Setting(seq=32)).peak
    large = meter.measure(LARGE, Setting(seq=32))
    assert large.peak > large.weights > 80 * MB
    assert meter.measure(SMALL, Setting(seq=32)).peak == pytest.approx(alone, abs=1 * MB)


def test_decoding_needs_no_scores_of_the_context(meter: MemoryMeter) -> None:
    prefill = meter.measure(SMALL, Setting(seq=256))
    decode = meter.measure(SMALL, Setting(mode="decode", seq=256))
    assert decode.activations < prefill.activations - 15 * MB


def test_a_failure_is_told_and_survived(meter: MemoryMeter) -> None:
    with pytest.raises(UserError, match="was not measured"):
        meter.measure(SMALL, Setting(seq=1, batch=10**12))
    assert meter.measure(SMALL, Setting(seq=8)).peak > 10 * MB


@pytest.fixture
def deadly(tmp_path: Path) -> Path:
    """A user's mixer that ends the process named by a file beside it, once."""
    lines = f"""    def _project(self, x):
        import os, pathlib, signal
        for name, process in (("child", os.getpid()), ("parent", os.getppid())):
            mark = pathlib.Path({str(tmp_path)!r}, name)
            if mark.exists():
                mark.unlink()
                os.kill(process, signal.SIGKILL)
"""
    template = files("plait").joinpath("model/mixer_template.txt").read_text()
    (tmp_path / "deadly.py").write_text(template.replace("    def _project(self, x):\n", lines))
    load_mixer(str(tmp_path / "deadly.py"))
    return tmp_path


def test_a_users_mixer_and_killed_processes(meter: MemoryMeter, deadly: Path) -> None:
    arch = architecture("d=32 vocab=50 | my-mixer mlp")
    (deadly / "child").touch()
    with pytest.raises(UserError, match="the process was killed by SIGKILL, probably because memory ran out"):
        meter.measure(arch, Setting(seq=8))
    (deadly / "parent").touch()
    found = meter.measure(arch, Setting(seq=8))  # by a new process
    assert not (deadly / "parent").exists()
    assert found.weights == pytest.approx(4 * model_cost(arch).total_params, rel=1e-3)


def test_a_users_mixer_may_print_and_raise(meter: MemoryMeter, tmp_path: Path) -> None:
    template = files("plait").joinpath("model/mixer_template.txt").read_text()
    lines = """    def _project(self, x):
        print("projecting", flush=True)
        if x.shape[1] == 9:
            raise TypeError("nine tokens.")
"""
    loud = template.replace("    def _project(self, x):\n", lines).replace("my-mixer", "my-loud")
    (tmp_path / "loud.py").write_text(f'{loud}\nprint("loaded")\n')
    load_mixer(str(tmp_path / "loud.py"))
    arch = architecture("d=32 vocab=50 | my-loud mlp")
    assert meter.measure(arch, Setting(seq=8)).weights > 0
    with pytest.raises(
        UserError, match=r"was not measured: .*loud.py, line \d+, in _project: TypeError: nine tokens\.$"
    ):
        meter.measure(arch, Setting(seq=9))


def test_a_mixer_without_a_file_is_refused(meter: MemoryMeter) -> None:
    class Options(type(load_mixer("gla"))):  # type: ignore[misc]
        name = "homeless"

    register(Options)
    with pytest.raises(UserError, match="a separate process, which does not know 'homeless'"):
        meter.measure(architecture("d=32 vocab=50 | homeless"), Setting(seq=8))


def test_parallel_mixers_are_measured(meter: MemoryMeter) -> None:
    arch = architecture("d=64 vocab=99 | (attn[heads=2] | mamba2) mlp")
    assert meter.measure(arch, Setting(seq=16)).weights == pytest.approx(
        4 * model_cost(arch, seq=16).total_params, 1e-2
    )
