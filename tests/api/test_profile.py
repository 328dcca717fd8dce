"""Profiles from Python, and the same from the command line."""

from __future__ import annotations

import pytest

import plait
from plait.device.profile import Profile
from plait.device.setting import Setting


def test_a_profile_is_opened_and_compared(plait_json, tmp_path):
    for name in ("one.json", "other.json"):
        Profile.here(Setting()).save(tmp_path / name)
    assert plait.open_profile("one.json").as_dict() == plait_json("profile", "show", "one.json")
    with pytest.raises(plait.UserError, match="no kind of layer in common"):
        plait.compare_profiles("one.json", "other.json")
    with pytest.raises(plait.UserError, match="threads 1; name another file"):
        plait.profile("one.json", threads=2)
