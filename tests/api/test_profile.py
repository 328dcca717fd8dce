"""Profiles from Python, and the same from the command line."""

from __future__ import annotations

import pytest

import plait
from plait.device.profile import Profile
from plait.device.quantities import Setting


def test_a_profile_is_opened_and_compared(plait_json, tmp_path):
    for name in ("one.json", "other.json"):
        Profile.here(Setting()).save(tmp_path / name)
    assert plait.open_profile("one.json").as_dict() == plait_json("profile", "show", "one.json")
    with pytest.raises(plait.UserError, match="no kind of layer in common"):
        plait.compare_profiles("one.json", "other.json")
    with pytest.raises(plait.UserError, match="threads 1; name another file"):
        plait.profile("one.json", threads=2)


def test_what_starting_takes_is_part_of_the_time(tmp_path, monkeypatch):
    """A profile of 30 s that took 10 to begin has 20 for measuring."""
    from plait.api import profile as module
    from plait.device import profiling

    now, asked = [100.0], []
    monkeypatch.setattr(module.clock, "perf_counter", lambda: now[0])

    def opened(name):
        now[0] += 10.0
        return load_space(name)

    from plait.space import table
    from plait.space.table import load_space

    monkeypatch.setattr(table, "load_space", opened)
    monkeypatch.setattr(profiling, "extend_profile", lambda *given, seconds, **_: asked.append(seconds))
    plait.profile(tmp_path / "box.json", time="30s", spaces=["small-hybrid"])
    assert asked == [20.0]
