"""`plait.study` from Python, and the same from the command line."""

from __future__ import annotations

import pytest

import plait
from plait.records.jobs import Publisher

TINY = ["--data", "builtin:language", "--steps", "2", "--batch", "2", "--seq-len", "16", "--seeds", "1"]
SMALL = {"data": "builtin:language", "steps": 2, "batch": 2, "seq_len": 16, "seeds": 1}


@pytest.fixture
def published(monkeypatch) -> set[str]:
    """The commands that have told the store how far they are."""
    seen: set[str] = set()

    def update(self, stage, share, detail=""):
        seen.add(self._state.verb)

    monkeypatch.setattr(Publisher, "update", update)
    return seen


def test_a_placement_study_is_what_the_command_prints(plait_json):
    told = []
    shape = {"layers": 4, "width": 16, "heads": 2, "d_ff": 16}
    found = plait.study.placement(p=(2,), **shape, **SMALL, on_progress=lambda *now: told.append(now))
    assert told[-1] == ("done", found.findings.study.models, found.findings.study.models)
    sizes = ("--layers", "4", "--width", "16", "--heads", "2", "--inner", "16")
    assert plait_json("study", "placement", "--p", "2", *sizes, *TINY) == found.as_dict()
    assert [row["pattern"] for row in found.rows()] == [row.pattern.name for row in found.findings.rows]


def test_a_sweep_of_learning_rates_is_what_the_command_prints(plait_json, published):
    specs = ["d=16 | attn[heads=2]", "d=16 | attn[heads=2] mlp[inner=16]", "d=16 | attn[heads=2] mlp[inner=32]"]
    found = plait.study.lr(models=0, specs=specs, rates=(1e-3, 1e-2), **SMALL)
    assert published == {"study lr"}, "the dashboard follows it"
    options = ("--models", "0", *(word for spec in specs for word in ("--spec", spec)), "--rates", "1e-3,1e-2")
    assert plait_json("study", "lr", *options, *TINY) == found.as_dict()
    assert {row["lr"] for row in found.rows()} <= {1e-3, 1e-2}
