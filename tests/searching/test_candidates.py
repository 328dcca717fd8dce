"""Every candidate that was compared is in the record: none is lost, none is changed, and its size is bounded."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from plait.algorithms import front
from plait.algorithms.evolution import LtsSearch, RandomSearch
from plait.algorithms.front import Candidates, search_record
from plait.algorithms.objectives import exact
from plait.core.errors import UserError
from plait.records import Record
from plait.records.record import json_text
from plait.space.space import Space
from plait.space.table import load_space

TWO = ["decoder_params", "flops"]


def read(record: Record) -> Candidates:
    document = json.loads(json.dumps(record.document()))  # as a store gives it back
    return Candidates.of(document["config"], document["result"])


def test_all_of_the_papers_2500_candidates_are_kept() -> None:
    space = load_space("lts-gpt2")
    search = LtsSearch(space, exact(TWO))
    front = search.run()
    record = search_record(search, 0.0)
    found = read(record)
    assert len(found) == front.evaluated == 2500
    assert len(np.unique(found.genes_NG, axis=0)) == 2500
    columns = space.columns(found.genes_NG, seq=space.seq)
    for place, name in enumerate(TWO):
        assert found.values_NM[:, place].tolist() == columns[name].tolist()
    rows = list(found.rows(front.specs))
    assert sum(row["on_front"] for row in rows) == len(front)
    assert [space.from_spec(row["spec"]).tolist() for row in rows[::250]] == found.genes_NG[::250].tolist()
    assert len(json_text(record.result["candidates"], "candidates")) < 40 * 2500


@pytest.mark.parametrize("stop", [1, 3])
def test_an_interrupted_search_keeps_the_same_candidates(small: Space, stop: int, tmp_path: Path) -> None:
    def make() -> LtsSearch:
        return LtsSearch(small, exact(TWO), iterations=4, start=30, seed=3)

    whole = make()
    whole.run()
    part, path = make(), tmp_path / "search.npz"
    for _ in range(stop):
        part.step(np.random.default_rng([part.seed, part.iteration]))
        part.iteration += 1
    part.save(path)
    resumed = make()
    resumed.run(path=path)
    assert resumed.log.as_dict() == whole.log.as_dict()


def test_a_record_has_room_for_so_many(small: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "MAX_STORED", 70)
    search = RandomSearch(small, exact(TWO), samples=200, at_once=50)
    search.run()
    found = read(search_record(search, 0.0))
    assert (len(found), found.evaluated) == (70, 200)


def test_genes_of_many_options_are_kept_whole(small: Space) -> None:
    wide = Space(replace(small.declared, slots=[["attn[heads=2]"], ["mlp[inner=32..9600 step 32]"]], constraints=()))
    search = RandomSearch(wide, exact(TWO), samples=100)
    search.run()
    found = read(search_record(search, 0.0))
    assert found.genes_NG.max() > 127
    assert found.space.columns(found.genes_NG)["decoder_params"].tolist() == found.values_NM[:, 0].tolist()


def test_what_cannot_be_read(small: Space) -> None:
    search = RandomSearch(small, exact(TWO), samples=10)
    search.run()
    record = search_record(search, 0.0)
    with pytest.raises(UserError, match="stored without its candidates"):
        Candidates.of(record.config, {name: value for name, value in record.result.items() if name != "candidates"})
    broken = {**record.result, "candidates": {**record.result["candidates"], "genes": "AAAA"}}
    with pytest.raises(UserError, match="the record is damaged"):
        Candidates.of(record.config, broken)
