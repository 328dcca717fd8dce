"""The splits: named streams, nothing shared between them, the same whoever draws and however much."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.tasks import SUITES, baseline, make_data, mean_ceiling
from plait.tasks import data as data_module
from plait.tasks.data import BLOCK, draw
from plait.tasks.task import stream

GRIDS = {"in-context-recall": 11, "fuzzy-in-context-recall": 11, "noisy-in-context-recall": 14, "selective-copying": 13,
         "compression": 11, "memorization": 6}  # fmt: skip


def rows(examples):
    return {row.tobytes() for row in examples.inputs_NT}


def small(name, variant="paper", **change):
    return baseline(name).with_settings(
        {"variant": variant, "train_size": "700"} | {k: str(v) for k, v in change.items()}
    )


@pytest.mark.parametrize("name", list(GRIDS))
@pytest.mark.parametrize("variant", ["paper", "mad-lab"])
def test_no_sequence_is_in_two_splits(name, variant):
    data = make_data(small(name, variant), 0, evaluation=300)
    assert [len(data.train), len(data.validation), len(data.test)] == [700, 300, 300]
    splits = [rows(data.train), rows(data.validation), rows(data.test)]
    assert len(set.union(*splits)) == sum(map(len, splits)) == 1300  # nor twice in one: blocks differ


def test_sequences_that_would_leak_are_drawn_again():
    """81 sequences there are; much of a fresh draw occurs in training, none of the result does."""
    task = small("compression", vocab=3, length=5, train_size=30)
    seen = rows(draw(task, 0, "train", 30))
    assert len(rows(draw(task, 0, "test", 100)) & seen) > 10
    data = make_data(task, 0, evaluation=20)
    assert not (rows(data.validation) | rows(data.test)) & seen
    assert not rows(data.validation) & rows(data.test)
    for inputs, targets in zip(data.test.inputs_NT, data.test.targets_NT, strict=True):
        assert task.valid(inputs, targets)  # a new input has its own targets


def test_too_few_different_sequences_is_said():
    with pytest.raises(UserError, match=r"too few different sequences: .* Raise length or vocab"):
        make_data(small("compression", vocab=2, length=4), 0)
    with pytest.raises(UserError, match="evaluation=0"):
        make_data(small("compression"), 0, evaluation=0)


@pytest.mark.parametrize("name", list(GRIDS))
def test_data_follow_from_setting_and_seed_alone(name, monkeypatch):
    task = small(name)
    once, again, other = (make_data(task, seed, evaluation=50) for seed in (5, 5, 6))
    for split in ("train", "validation", "test"):
        assert (once.split(split).inputs_NT == again.split(split).inputs_NT).all()
        assert (once.split(split).targets_NT == again.split(split).targets_NT).all()
        assert not (once.split(split).inputs_NT == other.split(split).inputs_NT).all()
    # The splits do not depend on each other: test alone, before anything else, is the same.
    alone = draw(task.seeded(5), 5, "test", 50)
    assert (alone.inputs_NT == once.test.inputs_NT).all()
    # Nor on how many are drawn, a block's border or not.
    for count in (1, BLOCK, BLOCK + 1):
        more = draw(task.seeded(5), 5, "train", count + 100)
        assert (draw(task.seeded(5), 5, "train", count).targets_NT == more.targets_NT[:count]).all()
    # Nor on the state of anybody else's random numbers.
    np.random.seed(1)
    assert (draw(task.seeded(5), 5, "test", 50).inputs_NT == alone.inputs_NT).all()


def test_another_process_draws_the_same():
    program = (
        "from plait.tasks import *; import hashlib; d = make_data(baseline('memorization'), 7);"
        "print(hashlib.sha256(d.test.inputs_NT.tobytes() + d.train.targets_NT.tobytes()).hexdigest())"
    )
    printed = {
        subprocess.run(
            [sys.executable, "-c", program],
            capture_output=True,
            text=True,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2")
    }
    assert len(printed) == 1


def test_streams_are_told_apart_by_every_part_of_their_name():
    names_ = [("a", 0, "train"), ("a", 0, "test"), ("a", 1, "train"), ("b", 0, "train"), ("a", 0, "train", 0)]
    firsts = {int(stream(*name).integers(2**62)) for name in names_}
    assert len(firsts) == len(names_)
    assert int(stream("a", 0, "train").integers(2**62)) in firsts


@pytest.mark.parametrize("name", list(GRIDS))
@pytest.mark.parametrize("variant", ["paper", "mad-lab"])
def test_the_grid_changes_one_variable_at_a_time(name, variant):
    task = baseline(name).with_settings({"variant": variant})
    grid = task.grid()
    assert len(grid) == len(set(grid)) == len({setting.key() for setting in grid}) == GRIDS[name]
    assert grid[0] == task
    assert grid[0].label == "baseline"
    for setting in grid[1:]:
        ((changed, value),) = setting.settings().items() - task.settings().items()
        assert setting.label == f"{changed}={value}"
        assert setting.variant == variant


def test_the_grid_has_66_settings_and_every_table_name():
    assert list(SUITES["mad"]) == [
        "in-context-recall", "fuzzy-in-context-recall", "noisy-in-context-recall", "selective-copying", "compression",
        "memorization",
    ]  # fmt: skip
    assert sum(len(baseline(name).grid()) for name in SUITES["mad"]) == 66


def test_settings_are_plain_data_and_their_hash_notices_everything():
    task = baseline("noisy-in-context-recall")
    assert json.loads(json.dumps(task.as_dict())) == {
        "task": "noisy-in-context-recall", "vocab": 16, "length": 128, "train_size": 12_800, "variant": "paper",
        "noise": 0.2, "noise_vocab": 16,
    }  # fmt: skip
    changed = [{"vocab": "32"}, {"noise": "0.4"}, {"variant": "mad-lab"}, {"noise_vocab": "8"}, {"train_size": "1"}]
    assert len({task.key(), *(task.with_settings(change).key() for change in changed)}) == 6


def test_ceilings(monkeypatch):
    assert 0.90 < mean_ceiling(baseline("memorization")) < 0.93
    monkeypatch.setattr(data_module, "make_data", None)  # the others need no data to know
    assert mean_ceiling(baseline("selective-copying")) == 1.0
