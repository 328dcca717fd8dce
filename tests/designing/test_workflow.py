"""The whole workflow on a simulated machine: interrupted, resumed, and read from the store."""

from __future__ import annotations

import json
import math
import os
import re
import time
from dataclasses import replace
from html import escape, unescape
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import typer
from made_up import extend, profile_of
from typer.testing import CliRunner

import plait
from plait.cli import design as design_command
from plait.core.errors import UserError
from plait.designing import config as briefs
from plait.designing import config as clock
from plait.designing import workflow as probing
from plait.designing.advice import labelled
from plait.designing.config import Clock
from plait.designing.workflow import design_config
from plait.device import latency, memory, profiling
from plait.device.latency import Timing
from plait.device.memory import Memory
from plait.device.predictor import Predictor
from plait.device.quantities import Setting
from plait.model.architecture import Architecture
from plait.probing.protocol import Protocol, quick
from plait.probing.run import run_budget
from plait.records import Store
from plait.space.constraints import Limits
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
    # Six seconds are too short for any probe: they have to do.
    monkeypatch.setattr(clock, "WORTH", -math.inf)
    monkeypatch.setattr(clock, "LATE", math.inf)
    monkeypatch.setattr(clock.StageEnd, "reached", lambda self, done: False)  # a busy machine cuts nothing here
    monkeypatch.setattr(probing, "run_budget", lambda *a, **k: run_budget(*a, **{**k, "overrun": True}))
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
    assert all(escape(labelled(point)[1], quote=False) in page for point in found["points"])
    assert found["advice"] == " ".join(found["points"])
    assert all(escape(step["command"], quote=False) in page for step in found["next"])
    assert "true entropy" in page
    again = json.loads(run("-o", "again.html").stdout)
    assert not again["train"]["trained_now"]
    assert again["advice"] == found["advice"]
    assert (tmp_path / "again.html").exists()


def test_terminal_and_page_say_the_same_in_the_same_order(bench: Bench, tmp_path: Path) -> None:
    design = json.loads(run().stdout)
    printed = " ".join(CliRunner().invoke(app, ARGUMENTS[:-1]).stdout.split())
    page = unescape(re.sub("<[^>]+>", "", (tmp_path / "report.html").read_text(encoding="utf-8").partition("<body")[2]))
    told = [design["points"][0], design["pick"]["spec"], *(labelled(point)[1] for point in design["points"][1:])]
    told += [part for step in design["next"] for part in (f"To {step['to']}:", step["command"])]
    for text, candidates in ((printed, "P(best): the probability"), (page, "The models that were raced")):
        places = [text.index(words) for words in (*told, candidates)]
        assert places == sorted(places)


def test_afterwards_the_latest_search_is_that_of_the_candidates(bench: Bench) -> None:
    """And not the one among Transformers alone, which they are compared with: `plait front show` showed that."""
    design = json.loads(run().stdout)
    latest = plait.front.show(front=0)
    assert latest.key == design["search"]["key"]
    assert {mixer for row in latest.front for mixer in ("attn", "gla") if mixer in row["spec"]} == {"attn", "gla"}


def test_a_mixer_of_the_spaces_own_files_is_probed(bench: Bench, tmp_path: Path) -> None:
    """The probe's workers are other processes: they know only the mixers that they are told of."""
    (tmp_path / "mine.py").write_text(files("plait").joinpath("model/mixer_template.txt").read_text())
    text = SPACE.replace("gla[heads=2]", "my-mixer").replace("attn[heads=2], ", "") + "files: [mine.py]\n"
    (tmp_path / "own.txt").write_text(text)
    bench.predictor = Bench(tmp_path / "own.txt").predictor
    found = json.loads(run("--space", "own.txt").stdout)
    assert {row["pattern"] for row in found["candidates"]} <= {"my-mixer", "my-mixer×2"}
    assert found["probe"]["trained_now"] > 0
    (text,) = found["config"]["sources"].values()
    assert text in (tmp_path / "report.html").read_text()


def test_an_edited_mixer_has_its_own_plan(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An edit made a slow mixer fast: the probe and the models that had not fitted before were left out again."""
    monkeypatch.chdir(tmp_path)
    template = files("plait").joinpath("model/mixer_template.txt").read_text()
    (tmp_path / "own.txt").write_text(SPACE.replace("gla[heads=2]", "edited") + "files: [edited.py]\n")
    limits, store = Limits.read(latency="20ms", memory="100MB"), Store(f"sqlite:///{tmp_path / 'plan.db'}")
    cut = []
    for text in (template, template.replace("F.silu(gate)", "F.gelu(gate)"), template):
        (tmp_path / "edited.py").write_text(text.replace('"my-mixer"', '"edited"'))
        config = design_config("own.txt", limits, "builtin:language", Setting(seq=32), 60.0, 0)
        end = Clock(config, store, time.perf_counter() - 60.0, ["d=32 vocab=64 | edited"]).end_of("measure", "the same")
        cut.append(end.known)
        assert end.reached(2)
    assert cut == [None, None, 2]


@pytest.mark.parametrize("when", ["before", "after its timing"])
def test_a_probe_that_does_not_fit_is_left_out(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, when: str
) -> None:
    """Where too little time is left, or trainings turn out too slow; the page says so, and a resumed design decides
    alike with all of its time before it."""
    monkeypatch.setattr(probing, "run_budget", run_budget)
    if when == "before":
        monkeypatch.setattr(clock, "WORTH", math.inf)
    found = json.loads(run().stdout)
    assert found["probe"]["architectures"] == []
    assert found["best_probed"] is None
    assert "too few on this machine" in found["probe"]["left_out"]
    assert f"Skills: not probed: {found['probe']['left_out']}." in found["points"]
    assert found["pick"]["pattern"] in {row["name"] for row in found["race"]["architectures"]}
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "The probe was left out" in page
    lines = CliRunner().invoke(app, ARGUMENTS[:-1]).stdout.splitlines()
    header = next(line for line in lines if line.split()[:1] == ["pattern"])
    assert "probe" not in header  # no such column
    monkeypatch.setattr(clock, "WORTH", -math.inf)
    again = json.loads(run().stdout)
    assert again["advice"] == found["advice"]


def test_the_race_gets_what_is_left(tmp_path: Path) -> None:
    """Before a training of the rest of the time; at least a part of its share; and what was decided first holds. The
    probe gets no more than its share."""
    config = design_config(
        "small-hybrid", Limits(), "builtin:language", Setting(seq=32), 300.0, 0, train_for=None, runs=tmp_path
    )
    assert (config.share("race"), config.share("train")) == (99.0, 42.0)
    with Store(f"sqlite:///{tmp_path / 'store.db'}") as store:
        for late, expected in ((100.0, 158.0), (159.0, 99.0), (188.0, 70.0), (290.0, 29.7)):
            now = Clock(config, store, time.perf_counter() - late, [f"late by {late}"])
            assert now.race() == pytest.approx(expected, abs=0.3)
        again = Clock(config, store, time.perf_counter(), ["late by 188.0"])
        assert again.race() == pytest.approx(70.0, abs=0.3)
        assert Clock(config, store, time.perf_counter() - 125, ["a"]).probe() == 36.0
        assert Clock(config, store, time.perf_counter(), ["early"]).probe() == 36.0
        assert Clock(config, store, time.perf_counter() - 145, ["b"]).probe() == 0.0


def test_no_model_measures_within_the_limits(bench: Bench) -> None:
    bench.slower = 1000.0
    with pytest.raises(UserError, match="busier than when it was profiled"):
        run("--latency", "1ms")


def test_limits_that_nothing_holds(bench: Bench) -> None:
    with pytest.raises(UserError, match="no candidate of mine satisfies every constraint"):
        run("--latency", "1us")
    assert not bench.measured
