"""An objective of a user's own file: searched by, keyed by its text, and what is wrong with it is one message."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import plait
from plait.core.errors import UserError
from plait.space.objective_table import OBJECTIVES

FILE = """
from plait.algorithms.objectives import Objective


class Thrift(Objective):
    name, maximise = "thrift", True

    def columns(self, batch):
        return {"thrift": batch.columns["decoder_params"] / batch.columns["flops"]}
"""
SPACE = "layers: 1..3\nd: 16|32\nheader: vocab=64\nmixers: [attn[heads=2], gla[heads=2]]\nchannel: [swiglu, none]\n"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    Path("thrift.py").write_text(FILE)
    Path("mine.space").write_text(SPACE)
    yield
    OBJECTIVES._registered.pop("thrift", None)


def search(*objectives: str, **more: Any) -> plait.FrontResult:
    given = {"method": "random", "iterations": 2, "population": 20, "validate": False, **more}
    return plait.search("mine.space", objectives=objectives or ("thrift.py", "flops"), **given)


def test_the_front_is_that_of_the_files_objective() -> None:
    found = search("thrift.py:Thrift", "flops", front=0)
    rows = found.front
    assert found.objectives == ("max:thrift", "min:flops")
    values = np.array([row["thrift"] for row in rows])
    assert values == pytest.approx([row["decoder_params"] / row["flops"] for row in rows])
    flops = np.array([row["flops"] for row in rows])
    for value, cost in zip(values, flops, strict=True):
        assert not ((values >= value) & (flops <= cost) & ((values > value) | (flops < cost))).any()


def test_a_constraint_may_name_it_and_an_edited_file_is_another_search() -> None:
    first, again = search(), search()
    assert first.key == again.key
    Path("thrift.py").write_text(FILE.replace('/ batch.columns["flops"]', "+ 0.5"))
    edited = search(constraints=["thrift >= 4000"])
    assert edited.key != first.key
    assert all(row["thrift"] >= 4000 for row in edited.front)


def test_infinities_are_stored() -> None:
    Path("thrift.py").write_text(FILE.replace('batch.columns["flops"]', "0.0"))
    with np.errstate(divide="ignore"):
        assert {row["thrift"] for row in search(front=0).front} == {1e300}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"thrift", True', '"flops", True', "the name 'flops' is taken by a built-in objective"),
        ("name, maximise = ", "title, maximise = ", r"thrift\.py: Thrift has no `name`"),
        ('name, maximise = "thrift", True', 'name = "thrift"', r"thrift\.py: Thrift has no `maximise`"),
        ("def columns(", "def column(", r"thrift\.py: a search cannot make the objective Thrift\(\)"),
        ("class Thrift(Objective)", "class Thrift", "should hold one subclass of Objective, found: none"),
        ('"decoder_params"', '"decoder_parms"', "the objective thrift fails: KeyError: 'decoder_parms'"),
        ('{"thrift"', '{"thift"', "should return a column 'thrift' with one number per candidate"),
        ('batch.columns["decoder_params"] /', 'batch.columns["flops"].sum() / 1 if len(batch) else 0 *', "one number"),
        ('batch.columns["flops"]', 'batch.columns["flops"] * float("nan")', "thrift is not a number for d="),
    ],
)
def test_what_is_wrong_with_the_file_is_told(old: str, new: str, message: str) -> None:
    assert old in FILE
    Path("thrift.py").write_text(FILE.replace(old, new))
    with pytest.raises(UserError, match=message):
        search()


def test_the_direction_is_the_files_own() -> None:
    assert search("max:thrift.py", "flops").key == search().key
    with pytest.raises(UserError, match="of thrift there is only max:thrift"):
        search("min:thrift.py", "flops")
    with pytest.raises(UserError, match=r"there is no file nowhere\.py"):
        search("nowhere.py")


def write(body: str, name: str = "thrift") -> None:
    Path("thrift.py").write_text(
        "import numpy as np\nfrom plait.algorithms.objectives import Objective\n\n\nclass Thrift(Objective):\n"
        f'    name, maximise = "{name}", True\n\n    def columns(self, batch):\n        {body}\n'
    )


def test_infinities_of_a_narrow_type_are_stored() -> None:
    write('return {"thrift": np.where(np.arange(len(batch)) == 0, np.inf, 1.0).astype(np.float32)}')
    assert max(row["thrift"] for row in search().front) == 1e300


def test_two_objectives_of_one_name_in_a_file_are_two_searches() -> None:
    Path("thrift.py").write_text(FILE + FILE.replace("class Thrift", "class Waste").replace(" / ", " * "))
    assert search("thrift.py:Thrift", "flops").key != search("thrift.py:Waste", "flops").key


def test_a_column_every_candidate_has_cannot_be_overwritten() -> None:
    write('return {"state": np.ones(len(batch))}', name="state")
    with pytest.raises(UserError, match="'state' is a column that every candidate has"):
        search()


def test_what_is_no_number_is_one_message() -> None:
    write('return {"thrift": [None] * len(batch)}')
    with pytest.raises(UserError, match="thrift returned object, not numbers"):
        search()


def test_an_objective_need_not_know_an_empty_batch() -> None:
    write('flops = batch.columns["flops"]; return {"thrift": flops / flops.max()}')
    assert max(row["thrift"] for row in search().front) == 1.0


def test_a_space_file_may_constrain_it() -> None:
    Path("mine.space").write_text(SPACE + "constraints: [thrift >= 0]\n")
    assert search().front
