"""`plait measure`, `plait profile`, `plait predict`."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from plait.cli import measure, profile
from plait.core.errors import UserError
from plait.core.units import parse_duration
from plait.device import memory, profiling
from plait.device.profile import Profile
from plait.device.quantities import Setting
from plait.model.architecture import architecture
from plait.model.user_mixers import read_architectures

SPEC = "d=64 vocab=500 | attn[heads=2] mlp"

app = typer.Typer()
app.command("measure")(measure.command)
app.command("predict")(measure.predict_command)
app.add_typer(profile.group, name="profile")


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return str(result.stdout)


@pytest.fixture
def box(tmp_path: Path, machine: Any, fill: Callable[..., Profile]) -> Path:
    checks = [architecture("d=64 vocab=500 | attn[heads=4] mlp[inner=300]")]
    fill(machine, Setting(), checks).save(tmp_path / "box.json")
    return tmp_path / "box.json"


def test_measure_stores_and_finds_again(tmp_path: Path, meter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "MemoryMeter", lambda: meter)
    arguments = ("measure", SPEC, "--seq", "16", "--archai", "--store", f"sqlite:///{tmp_path}/runs.db", "--json")
    first = json.loads(run(*arguments))
    (model,) = first["models"]
    assert model["spec"] == SPEC
    assert model["latency"]["low"] <= model["latency"]["seconds"] <= model["latency"]["high"]
    assert model["memory"]["state"] == 2
    assert model["archai"]["memory"] > 0
    assert "2e-06" in run(*arguments[:-1])  # MB of state, which were 0.0
    if not model["latency"]["noisy"]:
        assert json.loads(run(*arguments)) == first
    again = json.loads(run(*arguments, "--again"))["models"][0]
    assert again["key"] == model["key"]
    assert again["latency"]["seconds"] != model["latency"]["seconds"]


@pytest.mark.parametrize(
    ("spec", "options", "message"),
    [
        ("d=16 | gla", ("--device", "cuda"), "device 'cuda' given, but torch finds no GPU here"),
        ("d=16 pos=learned max_len=8 | gla", ("--seq", "8", "--mode", "both"), "but the model has max_len=8 positions"),
    ],
)
def test_all_models_are_checked_before_the_first_is_measured(
    spec: str, options: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its process was started first, which took ten seconds on a busy machine."""
    monkeypatch.setattr(memory, "MemoryMeter", None)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UserError, match=message):
        run("measure", "d=16 | mlp", spec, *options, "--store", f"sqlite:///{tmp_path}/runs.db")


def test_predict(box: Path) -> None:
    document = json.loads(run("predict", SPEC, "d=128 vocab=500 | mlp", "--profile", str(box), "--json"))
    assert [model["spec"] for model in document["models"]] == [SPEC, "d=128 vocab=500 | mlp"]
    for model in document["models"]:
        for name in ("latency_ms", "memory_mb"):
            low, high = model[name]["interval"]
            assert low < model[name]["mean"] < high
    assert document["profile"]["points"]["layer"] == 48
    setting, headings, _ = run("predict", SPEC, "--profile", str(box)).splitlines()
    assert setting == "prefill of 192 tokens, batch 1; cpu, float32, 1 thread"
    assert headings.split()[:6] == ["spec", "latency", "ms", "latency", "ms", "interval"]
    assert headings.split()[6:] == ["memory", "MB", "memory", "MB", "interval"]


def test_a_mixer_of_ones_own(box: Path, tmp_path: Path) -> None:
    template = files("plait").joinpath("model/mixer_template.txt").read_text()
    mine = tmp_path / "mine.py"
    mine.write_text(template)
    assert [arch.text for arch in read_architectures([str(mine)])] == ["d=512 vocab=50257 | (my-mixer swiglu)x2"]
    channel = template.replace("my-mixer", "my-channel").replace('"sequence"', '"channel"')
    (tmp_path / "channel.py").write_text(channel)
    both = [str(mine), f"{tmp_path}/channel.py:MyMixer", "d=64 vocab=500 | my-mixer my-channel"]
    assert [arch.text for arch in read_architectures(both)] == [both[-1]]
    assert read_architectures(both[1:2])[0].text == "d=512 vocab=50257 | (attn my-channel)x2"
    with pytest.raises(UserError, match="the profile has no measurement of my-mixer in mode prefill; it knows attn"):
        run("predict", str(mine), "d=64 vocab=500 | my-mixer mlp", "--profile", str(box))


def test_a_mixer_that_was_edited_since_the_profile_is_said_to_be(box: Path, tmp_path: Path) -> None:
    """The profile seemed to have lost it: "no measurement of my-mixer; it knows attn, relu2"."""
    mine = tmp_path / "mine.py"
    mine.write_text(files("plait").joinpath("model/mixer_template.txt").read_text())
    whole = Profile.load(box)
    layer = next(point for point in whole.points if point.what == "layer")
    replace(whole, points=[*whole.points, replace(layer, spec="my-mixer[memory=4.0]", source="0" * 16)]).save(box)
    with pytest.raises(UserError, match=r"my-mixer was measured with another text of its file\. Add to it with"):
        run("predict", str(mine), "d=64 vocab=500 | my-mixer mlp", "--profile", str(box))


def test_predict_for_another_machine(box: Path) -> None:
    read = json.loads(box.read_text())
    read["device"]["cores"] = 999
    read.pop("checksum", None)  # as a profile of before has none
    box.write_text(json.dumps(read))
    with pytest.raises(UserError, match="another machine"):
        run("predict", SPEC, "--profile", str(box))
    assert "ms" in run("predict", SPEC, "--profile", str(box), "--anywhere")


def test_profile_for_real_in_a_moment(tmp_path: Path, meter: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "MemoryMeter", lambda: meter)
    space, out = tmp_path / "tiny.space", tmp_path / "box.json"
    space.write_text(
        "layers: 1..2\nd: 32|64\nheader: vocab=50\nmixers: [attn[heads=2]]\nchannel: [mlp[inner=64|128]]\n"
    )
    arguments = ("profile", "-o", str(out), "--time", "1s", "--seq", "16", "--space", str(space), "--json")
    first = json.loads(run(*arguments))
    assert first["points"]["layer"] in (5, 6)  # of six: attention at two widths, two inner widths at two
    assert first["points"]["outside"] == 2
    monkeypatch.setattr(profiling, "LEAST", 6)  # of every kind, however slow the machine
    more = json.loads(run(*arguments))
    assert more["points"]["layer"] == 6
    assert more["points"]["model"] > first["points"]["model"]
    with pytest.raises(UserError, match="threads 1; name another file"):
        run(*arguments, "--threads", "2")
    assert "6 layers" in run("profile", "show", str(out))


def test_compare(box: Path, tmp_path: Path, machine: Any, fill: Callable[..., Profile]) -> None:
    fill(type(machine)(speed=0.5), Setting()).save(tmp_path / "slow.json")
    document = json.loads(run("profile", "compare", str(box), str(tmp_path / "slow.json"), "--json"))
    assert [round(ratio["median"], 1) for ratio in document["ratios"]] == [2.0, 2.0, 2.0]
    assert "2.0" in run("profile", "compare", str(box), str(tmp_path / "slow.json"))


@pytest.mark.parametrize(("text", "seconds"), [("90", 90), ("90s", 90), ("3m", 180), ("1.5m", 90), ("1h", 3600)])
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "3 weeks", "0s", "-1"])
def test_durations_that_are_none(text: str) -> None:
    with pytest.raises(UserError, match="90s, 10m or 1h30m"):
        parse_duration(text)


@pytest.mark.parametrize("out", ["/dev/null/box.json", "file/box.json"])
def test_a_profile_that_cannot_be_written_is_refused_before_anything_is_measured(
    out: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def measured(*_: object, **__: object) -> None:
        raise AssertionError("measured in vain")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(profiling, "extend_profile", measured)
    Path("file").touch()
    with pytest.raises(UserError, match=r"cannot write the profile .*box\.json"):
        run("profile", "--out", out)
