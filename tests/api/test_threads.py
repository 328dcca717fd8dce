"""More threads than cores are refused wherever a model is measured, before anything is."""

from __future__ import annotations

from functools import partial

import pytest

import plait
from plait.device.profile import Profile
from plait.device.quantities import Setting
from plait.records import record

SPEC = "d=16 vocab=9 | attn"
MEASURING = {
    "measure": partial(plait.measure, SPEC),
    "lengths": partial(plait.measure_lengths, SPEC, "16,32,64,128"),
    "profile": partial(plait.profile, "one.json"),
    "search": partial(plait.search, "small-hybrid", latency="20ms"),
    "shapes": plait.study.shapes,
    "design": plait.design,
}


@pytest.mark.parametrize("verb", MEASURING)
def test_more_threads_than_cores_are_refused(verb, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(record, "cores", lambda: 2)
    with pytest.raises(plait.UserError, match="--threads 3: this process may use 2 cores; give no more"):
        MEASURING[verb](threads=3)
    assert not list(tmp_path.iterdir())


def test_another_machine_may_have_more(monkeypatch):
    monkeypatch.setattr(record, "cores", lambda: 2)
    from plait.api.search import _given_profile

    profile = Profile.here(Setting(threads=3))
    monkeypatch.setattr(Profile, "load", lambda path, anywhere: profile)
    assert _given_profile("theirs.json", True, partial(Setting, seq=8), None, None)[1].threads == 3
    with pytest.raises(plait.UserError, match="--threads 3"):
        _given_profile("ours.json", False, partial(Setting, seq=8), None, None)
