"""The whole job on a machine that is arithmetic: stopped in the middle, gone on with, found again."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import typer
from made_up import extend, profile_of
from typer.testing import CliRunner

from plait.cli import design as design_command
from plait.core.errors import UserError
from plait.designing import config as briefs
from plait.designing import workflow as probing
from plait.device import latency, memory, profiling
from plait.device.latency import Timing
from plait.device.memory import Memory
from plait.device.predictor import Predictor
from plait.device.setting import Setting
from plait.model.architecture import Architecture
from plait.probing.protocol import Protocol, quick
from plait.space.table import load_space

SPACE = """
layers: 1..2
d: 32..64 step 32
header: vocab=32 tie=true
mixers: [attn[heads=2], gla[heads=2]]
channel: [swiglu[inner=64|128]]
seq: 32
"""
ARGUMENTS = ("--space", "mine.txt", "--data", "builtin:language", "--seq", "32", "--time", "6s", "--json")

app = typer.Typer()
app.command()(design_command.command)


class Bench:
    """Stands for measuring: what is predicted, `slower` times; remembers what it measured."""

    slower = 1.0

    def __init__(self, space: Path) -> None:
        setting = Setting(seq=32)
        self.predictor = Predictor(profile_of(load_space(str(space)), setting), setting)
        self.measured: list[str] = []

    def __enter__(self) -> Bench:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def latency(self, arch: Architecture, setting: Setting) -> Timing:
        self.measured.append(arch.text)
        seconds = self.slower * float(self.predictor.latency([arch]).mean[0])
        return Timing(seconds, 0.99 * seconds, 1.01 * seconds, 0.01, 9, 1.0, 0.0, 0.5, False)

    def measure(self, arch: Architecture, setting: Setting) -> Memory:
        return Memory(int(self.predictor.memory([arch]).mean[0]), 0, 0, 0)


def tiny(given: Any) -> Protocol:
    """Two tasks, a few steps."""
    protocol = quick(given[:2])
    short = [
        replace(s, training=replace(s.training, steps=20, eval_every=20, evaluation=16)) for s in protocol.settings
    ]
    return replace(protocol, settings=tuple(short))


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLAIT_STORE", raising=False)
    (tmp_path / "mine.txt").write_text(SPACE)
    made = Bench(tmp_path / "mine.txt")
    monkeypatch.setattr(memory, "MemoryMeter", lambda: made)
    monkeypatch.setattr(latency, "measure_latency", made.latency)
    monkeypatch.setattr(profiling, "extend_profile", extend)
    monkeypatch.setattr(probing, "quick", tiny)
    monkeypatch.setattr(briefs, "LEAST_SECONDS", 6.0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)  # one worker: it races here
    monkeypatch.setitem(briefs.SHARES, "train", 0.1)
    return made


def run(*arguments: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, [*ARGUMENTS, *arguments], catch_exceptions=False)
    assert result.exit_code == code, result.output
    return result


def test_stopped_gone_on_with_and_found_again(bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from plait.designing import workflow

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(workflow, "train", stop)
        assert "The same command resumes" in run(code=130).stderr
    measured = len(bench.measured)
    assert measured
    found = json.loads(run().stdout)
    assert len(bench.measured) == measured
    assert found["probe"]["trained_now"] == 0
    assert found["train"]["trained_now"]
    assert found["search"]["evaluated"] > 30
    names = [row["pattern"] for row in found["candidates"]]
    assert len(set(names)) == len(names) >= 2
    assert found["pick"]["pattern"] in found["not_distinguishable"]
    assert found["recommended"] == found["pick"]["spec"]
    raced = {row["name"]: row for row in found["race"]["architectures"]}
    assert set(raced) == set(names)
    assert sum(row["p_best"] for row in raced.values()) == pytest.approx(1.0)
    assert found["pick"]["pattern"] == min(raced, key=lambda name: raced[name]["regret"])
    assert found["foresight"][-1]["best"] in names
    assert found["train"]["tokens"] == pytest.approx(max(found["budget"]["tokens"], 20 * 8 * 32), rel=0.1)
    assert set(found["not_distinguishable"]) <= set(names)
    assert set(found["plain"].split("×")) <= {"attn", "2"}
    assert all(row["within"] for row in found["candidates"])
    assert found["train"]["entropy"] == pytest.approx(1.37, abs=0.01)
    assert set(found["stages"]) == set(briefs.STAGES)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert found["advice"].split(":")[0] in page
    assert "true entropy" in page
    again = json.loads(run("-o", "again.html").stdout)
    assert not again["train"]["trained_now"]
    assert again["advice"] == found["advice"]
    assert (tmp_path / "again.html").exists()


def test_a_mixer_of_the_spaces_own_files_is_probed(bench: Bench, tmp_path: Path) -> None:
    """The probe's workers are other processes: they know only the mixers that they are told of."""
    (tmp_path / "mine.py").write_text(files("plait").joinpath("model/mixer_template.txt").read_text())
    text = SPACE.replace("gla[heads=2]", "my-mixer").replace("attn[heads=2], ", "") + "files: [mine.py]\n"
    (tmp_path / "own.txt").write_text(text)
    bench.predictor = Bench(tmp_path / "own.txt").predictor
    found = json.loads(run("--space", "own.txt").stdout)
    assert {row["pattern"] for row in found["candidates"]} <= {"my-mixer", "my-mixer×2"}
    assert found["probe"]["trained_now"] > 0


def test_no_model_measures_within_the_limits(bench: Bench) -> None:
    bench.slower = 1000.0
    with pytest.raises(UserError, match="busier than when it was profiled"):
        run("--latency", "1ms")


def test_limits_that_nothing_holds(bench: Bench) -> None:
    with pytest.raises(UserError, match="no candidate of mine satisfies every constraint"):
        run("--latency", "1us")
    assert not bench.measured
