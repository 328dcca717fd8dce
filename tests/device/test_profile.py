"""Profiles as files."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from plait.core.errors import UserError
from plait.device.profile import Profile
from plait.device.quantities import Setting

Fill = Callable[..., Profile]


def test_there_and_back(tmp_path: Path, machine: Any, fill: Fill) -> None:
    profile = fill(machine, Setting())
    profile.save(tmp_path / "new" / "box.json")
    read = Profile.load(tmp_path / "new" / "box.json")
    assert read.points == profile.points
    assert read.hash == profile.hash
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["box.json"]  # no draft left
    assert read.describe()["points"] == {"layer": 48, "outside": 4, "model": 0, "noisy": 0}


def test_the_hash_tells_profiles_apart(machine: Any, fill: Fill) -> None:
    one, other = fill(machine, Setting()), fill(machine, Setting())
    assert one.hash == other.hash
    other.points.pop()
    assert one.hash != other.hash


def test_another_machine_is_refused_unless_asked_for(tmp_path: Path, machine: Any, fill: Fill) -> None:
    profile = fill(machine, Setting())
    profile.device["cpu"] = "Abacus 9000"
    profile.save(tmp_path / "far.json")
    with pytest.raises(UserError, match=r"another machine \(cpu Abacus 9000, not .*--anywhere"):
        Profile.load(tmp_path / "far.json")
    assert Profile.load(tmp_path / "far.json", anywhere=True).device["cpu"] == "Abacus 9000"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", "is not a profile"),
        ('{"format": "plait-profile", "version": 1}', "damaged"),
        ('{"format": "plait-profile", "version": 99}', "newer plait"),
    ],
)
def test_files_that_are_no_profiles(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "box.json").write_text(text)
    with pytest.raises(UserError, match=message):
        Profile.load(tmp_path / "box.json")


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="plait profile -o"):
        Profile.load(tmp_path / "box.json")


def test_it_names_no_place(tmp_path: Path, machine: Any, fill: Fill, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/of-somebody")  # that of some is "/"
    fill(machine, Setting()).save(tmp_path / "box.json")
    text = (tmp_path / "box.json").read_text()
    assert str(Path.home()) == "/home/of-somebody"
    assert "of-somebody" not in text
    assert json.loads(text)["device"].keys() == {"system", "cpu", "cores", "gpu", "torch", "python", "plait"}


def test_a_failed_save_leaves_the_old_file_and_no_draft(
    tmp_path: Path, machine: Any, fill: Fill, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    profile = fill(machine, Setting())
    profile.save(tmp_path / "box.json")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(UserError, match=r"cannot write the profile .*No space left"):
            profile.save(tmp_path / "box.json")
    assert Profile.load(tmp_path / "box.json").points == profile.points
    assert [path.name for path in tmp_path.iterdir()] == ["box.json"]


def test_progress_says_what_a_point_is_in_words(machine: Any, fill: Fill) -> None:
    point = fill(machine, Setting()).points[0]
    assert replace(point, what="outside", spec="d=8 vocab=9").heading == "embedding and head of d=8 vocab=9"
    assert replace(point, what="layer", spec="gla").heading == "layer gla"
