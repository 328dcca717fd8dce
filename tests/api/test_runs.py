"""`plait.runs` from Python, and the same from the command line."""

from __future__ import annotations

import pytest

import plait
from plait.records import Record, provenance_of

SPEC = "d=16 | attn[heads=2]"


@pytest.fixture
def stored(plait_json):
    with plait.open_store() as store:
        for seed in range(3):
            store.put(Record.of("toy", {"protocol": 1, "seed": seed}, {"loss": 1.5 - seed}, provenance_of(0.0, 1.0)))
    return plait_json


def test_records_are_found_shown_and_removed(stored):
    found = plait.runs.find("toy")
    assert stored("runs", "list", "--kind", "toy") == found.as_dict()["records"]
    (one,) = plait.runs.find("toy", where={"seed": 1}).records
    assert one.result == {"loss": 0.5}
    assert stored("runs", "show", one.key[:8]) == plait.runs.show(one.key[:8]).document()
    assert {row["result.loss"] for row in found.rows()} == {1.5, 0.5, -0.5}
    assert "loss 1.5" in found._repr_html_()  # the number that one asks for first
    assert plait.runs.export("out.csv", "toy") == 3
    assert stored("runs", "export", "out.json") == {"file": "out.json", "records": 3}
    with pytest.raises(plait.UserError, match="give --yes"):  # a program cannot be asked
        stored("runs", "rm", one.key)
    told = stored("runs", "rm", "--yes", one.key[:8])
    assert (told["removed"], told["keys"]) == (1, [one.key])
    assert len(plait.runs.find().records) == 2
    with pytest.raises(plait.UserError, match="Did you mean 'toy'"):
        plait.runs.find("toi")


def test_curves_are_those_of_the_runs(plait_json, tmp_path):
    runs = [plait.train(SPEC, data="builtin:language", steps=3, batch=2, seq_len=16, seed=seed) for seed in (0, 1)]
    found = plait.runs.curves([run.folder for run in runs])
    assert found.as_dict() == plait_json("runs", "curves", *(run.run for run in runs))
    assert [one.losses for one in found.curves] == [run.curve for run in runs]
    found.save_svg("curves.svg")
    assert (tmp_path / "curves.svg").read_text().startswith("<svg")
