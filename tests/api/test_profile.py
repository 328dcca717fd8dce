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
    monkeypatch.setattr(profiling, "extend_profile", lambda *given, seconds, most, **_: asked.append((seconds, most)))
    plait.profile(tmp_path / "box.json", time="30s", spaces=["small-hybrid"])
    assert asked == [(20.0, 50.0)]  # the minimum may take twice the time


def test_the_minimum_is_said_first_and_counted(tmp_path, monkeypatch):
    """A profile of 10 s took minutes for the minimum, which only its last line told."""
    from types import SimpleNamespace

    from plait.device import profiling

    def extend(growing, *_, on_start, on_progress, **__):
        on_start(2)
        for _ in range(3):
            growing.points.append(SimpleNamespace(heading="layer attn"))
            on_progress(growing.points[-1], 0.5)
        growing.points.clear()

    told = []
    monkeypatch.setattr(profiling, "extend_profile", extend)
    plait.profile(
        tmp_path / "box.json", time="10s", spaces=["small-hybrid"], on_progress=lambda what, *_: told.append(what)
    )
    assert told[1:] == [
        "at least 2 measurements",
        "1 of at least 2, layer attn",
        "2 of at least 2, layer attn",
        "layer attn",
    ]
