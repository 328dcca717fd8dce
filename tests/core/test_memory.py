"""Small input that would need huge memory is refused before anything is allocated."""

from __future__ import annotations

import tracemalloc

import pytest

from plait.core.errors import UserError
from plait.core.progress import available_memory, require_memory
from plait.model import build
from plait.space.constraints import Constraint
from plait.space.table import read_space
from plait.tasks import load_task, make_data


def test_what_there_is() -> None:
    assert 2**20 < available_memory() < 2**50
    require_memory(1, "a byte")
    with pytest.raises(UserError, match=r"it needs 1,000,000.0 GB of memory; there are .* GB\. Make it smaller\."):
        require_memory(1e15, "it", "Make it smaller.")


@pytest.mark.parametrize(
    "make",
    [
        lambda: build("d=1048576 vocab=1000000 | (attn[heads=8] swiglu)x64"),
        lambda: make_data(load_task("in-context-recall").with_settings({"train_size": "99999999999"}), 0),
        lambda: make_data(load_task("compression").with_settings({"length": "9999999999"}), 0),
        lambda: read_space("layers: 1..100000\nd: 64\nmixers: [attn]\n", "deep"),
    ],
    ids=["model", "task size", "task length", "space"],
)
def test_huge_things_are_refused_at_once(make: object) -> None:
    tracemalloc.start()
    with pytest.raises(UserError):
        make()  # type: ignore[operator]
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100e6


@pytest.mark.parametrize(
    "text", ["1/0 < d", "d < 1//0", "d % 0 < 1 % 0", f"d < {'9' * 400}", "1e308 * 10 < d", "(" * 500 + "d" + ")" * 500]
)
def test_constraints_that_are_no_numbers_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="constraint"):
        Constraint.parse(text)
