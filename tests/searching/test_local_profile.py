"""This machine's profile is made once, added to where a search asks for more, and never taken from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import made_up
import pytest

from plait.core.errors import UserError
from plait.device import profiling
from plait.device.profile import Profile
from plait.device.quantities import Setting
from plait.searching.local_profile import MORE, NEW, covers, local_profile, profile_path
from plait.space.space import Space
from plait.space.table import load_space

SETTING = Setting(seq=32)


class Profiler:
    """In place of measuring; remembers for how long it was to."""

    def __init__(self) -> None:
        self.seconds: list[float] = []
        self.interrupts = False

    def __call__(
        self,
        profile: Profile,
        component_sets: Any,
        settings: Sequence[Setting],
        *,
        seconds: float,
        most: float,
        on_progress: Any,
    ) -> None:
        self.seconds.append(seconds)
        made_up.extend(profile, component_sets, settings)
        if self.interrupts:
            profile.points = [point for point in profile.points if point.what != "model"]
            raise KeyboardInterrupt
        on_progress(profile.points[-1], 1.0)


@pytest.fixture
def profiler(monkeypatch: pytest.MonkeyPatch) -> Profiler:
    made = Profiler()
    monkeypatch.setattr(profiling, "extend_profile", made)
    return made


def test_made_once_then_found(small: Space, profiler: Profiler, tmp_path: Path) -> None:
    heard: list[float] = []
    made = local_profile(small, SETTING, tmp_path, on_progress=lambda point, over: heard.append(over))
    assert profiler.seconds == [NEW]
    assert heard == [1.0]
    again = local_profile(small, SETTING, tmp_path)
    assert again.hash == made.hash
    assert profiler.seconds == [NEW]
    assert [path.name for path in (tmp_path / "profiles").iterdir()] == [profile_path(tmp_path, SETTING).name]


def test_added_to_for_new_kinds_headers_and_lengths(small: Space, profiler: Profiler, tmp_path: Path) -> None:
    points = len(local_profile(small, SETTING, tmp_path).points)
    longer = local_profile(small, Setting(seq=64), tmp_path)
    assert len(longer.points) > points
    other = local_profile(load_space("hybrid"), SETTING, tmp_path, seconds=9.0)
    assert len(other.points) > len(longer.points)
    assert profiler.seconds == [NEW, MORE, 9.0]
    # Everything asked for before is still there.
    assert all(covers(other, space, SETTING) for space in (small, load_space("hybrid")))
    assert covers(other, small, Setting(seq=64))
    # The same kinds of layers, but another embedding.
    assert not covers(other, load_space("lts-gpt2"), SETTING)


def test_other_threads_are_another_profile(tmp_path: Path) -> None:
    assert profile_path(tmp_path, SETTING) == profile_path(tmp_path, Setting(seq=999, mode="decode"))
    assert profile_path(tmp_path, SETTING) != profile_path(tmp_path, Setting(threads=2))


def test_interrupted_it_keeps_what_it_has_and_goes_on(small: Space, profiler: Profiler, tmp_path: Path) -> None:
    profiler.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        local_profile(small, SETTING, tmp_path)
    kept = len(Profile.load(profile_path(tmp_path, SETTING)).points)
    assert kept > 0
    profiler.interrupts = False
    assert len(local_profile(small, SETTING, tmp_path).points) > kept
    assert profiler.seconds == [NEW, MORE]


def test_a_profile_of_another_machine_is_refused(small: Space, profiler: Profiler, tmp_path: Path) -> None:
    local_profile(small, SETTING, tmp_path)
    path = profile_path(tmp_path, SETTING)
    document = json.loads(path.read_text())
    document["device"]["cpu"] = "Abacus"
    document.pop("checksum", None)  # as a profile of before has none
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"another machine \(cpu Abacus.*Make one here with `plait profile`"):
        local_profile(small, SETTING, tmp_path)
