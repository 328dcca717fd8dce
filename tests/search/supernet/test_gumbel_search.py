"""Differentiable search among the other methods: rules hold, each seed is told, killing it changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from plait.arch import architecture
from plait.data import open_corpus
from plait.errors import UserError
from plait.measure.setting import Setting
from plait.records import open_store
from plait.search.declaration import Declaration
from plait.search.job import Interrupted, Request, search_front
from plait.search.space import Space
from plait.search.spaces.table import load_space
from plait.search.supernet.job import SupernetJob
from plait.search.supernet.search import layer_choices
from plait.search.supernet.settings import Settings
from plait.train.recipe import Recipe

SPACE = Declaration("tiny", "4", "16", [["attn[heads=2]", "mlp[inner=32]", "none"]], "vocab=256", seq=16)
RECIPE = Recipe(batch=4, length=16, lr=1e-2)


@pytest.fixture(scope="module")
def job() -> SupernetJob:
    corpus = open_corpus("builtin:language")
    return SupernetJob(corpus, RECIPE, Settings(steps=60, top=3), seeds=2)


def request(job: SupernetJob, **more: object) -> Request:
    space = Space(SPACE.with_vocabulary(job.corpus.vocab))
    return Request(space, Setting(seq=16), method="gumbel", supernet=job, **more)


def test_the_front_and_every_seed_are_told(job: SupernetJob, tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        record = search_front(request(job), None, store, tmp_path)
        assert search_front(request(job), None, store, tmp_path).key == record.key
    result = record.result
    assert result["method"] == "gumbel"
    assert [seed["seed"] for seed in result["seeds"]] == [0, 1]
    assert result["choices"] == [["attn[heads=2]", "mlp[inner=32]", "none"]] * 4
    for seed in result["seeds"]:
        names = ["attn", "mlp", "none"]
        assert seed["layers"] == [names[int(np.argmax(row))] for row in seed["probabilities"]]
        kept = [name for name in seed["layers"] if name != "none"]
        assert (seed["spec"] is None) == (not kept)
        assert not kept or [layer.name for layer in architecture(seed["spec"]).layers] == kept
        assert seed["steps"] == 60
    assert 0 < len(result["front"]) <= 6
    for row in result["front"]:
        assert 0 < row["loss"] < 10
        assert row["flops"] > 0
        assert row["spec"].startswith(f"d=16 vocab={job.corpus.vocab}")
    # The front holds no architecture that another beats in both loss and FLOPs.
    pairs = [(row["loss"], row["flops"]) for row in result["front"]]
    assert not any(a[0] <= b[0] and a[1] <= b[1] and a != b for a in pairs for b in pairs)


def test_rules_pass_over_what_is_likelier(job: SupernetJob, tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        record = search_front(request(job, rules=["count(attn) == 1", "count(mlp) == 2"]), None, store, tmp_path)
    assert record.result["front"]
    for row in record.result["front"]:
        assert sorted(layer.name for layer in architecture(row["spec"]).layers) == ["attn", "mlp", "mlp"]


@pytest.mark.parametrize("stop", [1, 5, 7, 11])
def test_interrupted_after_any_iteration_it_finds_the_same(job: SupernetJob, tmp_path: Path, stop: int) -> None:
    with open_store(f"sqlite:///{tmp_path}/one.db") as store:
        whole = search_front(request(job), None, store, tmp_path / "one").result
    with open_store(f"sqlite:///{tmp_path}/two.db") as store:
        done = 0

        def after(search: object) -> None:
            nonlocal done
            done += 1
            if done == stop:
                os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(Interrupted):
            search_front(request(job), None, store, tmp_path / "two", after)
        resumed = search_front(request(job), None, store, tmp_path / "two").result
    for name in ("front", "seeds", "evaluated", "proposed"):
        assert resumed[name] == whole[name]


def test_spaces_that_leave_more_than_layers_open_are_refused() -> None:
    with pytest.raises(UserError, match="all its layers are alike"):
        layer_choices(Space(Declaration("s", "2..4", "32", [["attn"]], "vocab=9", alike=True)))
    with pytest.raises(UserError, match="--fix layers=16 --fix d=768"):
        layer_choices(load_space("hybrid"))
    with pytest.raises(UserError, match="at most 64"):
        layer_choices(Space(Declaration("s", "4", "32", [["mlp[inner=8..1024 step 8]"]], "vocab=9")))
    narrow = load_space("small-hybrid")
    chosen = {"layers": str(narrow.depths[-1]), "d": str(narrow.widths[0])}
    assert layer_choices(Space(narrow.declared.narrowed(chosen)))
    assert len(layer_choices(load_space("par"))) == 32


def test_the_data_are_for_gumbel_alone(job: SupernetJob) -> None:
    space = Space(SPACE)
    with pytest.raises(UserError, match="needs --data"):
        Request(space, Setting(seq=16), method="gumbel")
    with pytest.raises(UserError, match="needs --data"):
        Request(space, Setting(seq=16), method="lts", supernet=job)
    with pytest.raises(UserError, match="only --method gumbel"):
        Request(space, Setting(seq=16), ["loss"])
    with pytest.raises(UserError, match="neither iterations nor a population"):
        request(job, iterations=5)


def test_text_for_the_logits_is_not_that_of_the_weights(job: SupernetJob) -> None:
    parts = {stage: corpus.tokens("train") for stage, corpus in job.split().items()}
    whole = job.corpus.tokens("train")
    assert len(parts["architecture"]) == pytest.approx(0.2 * len(whole), rel=1e-3)
    assert np.array_equal(np.concatenate([parts["weights"], parts["architecture"]]), whole)


def plait(folder: Path, *arguments: str) -> list[str]:
    return [sys.executable, "-m", "plait", *arguments]


COMMAND = (
    *("search", "--space", "space.txt", "--method", "gumbel", "--data", "builtin:language", "--steps", "400"),
    *("--seeds", "2", "--set", "batch=4", "--set", "length=16", "--retrain", "20", "--json"),
)
TEXT = """
layers: 3
d: 16
mixers: [attn[heads=2], mlp[inner=32], none]
seq: 16
"""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1"}


def test_the_command_killed_again_and_again_finds_the_same(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("whole", "killed")]
    for folder in folders:
        folder.mkdir()
        (folder / "space.txt").write_text(TEXT)
    whole = json.loads(subprocess.run(plait(folders[0], *COMMAND), cwd=folders[0], env=environment(), check=True,
                                      capture_output=True, text=True).stdout)  # fmt: skip
    for seconds in (3.0, 4.0):
        running = subprocess.Popen(plait(folders[1], *COMMAND), cwd=folders[1], env=environment(),
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        time.sleep(seconds)
        running.send_signal(signal.SIGINT if seconds == 3.0 else signal.SIGKILL)
        running.wait()
    again = json.loads(subprocess.run(plait(folders[1], *COMMAND), cwd=folders[1], env=environment(), check=True,
                                      capture_output=True, text=True).stdout)  # fmt: skip
    assert [{k: v for k, v in row.items() if k != "measurement"} for row in whole["front"]] == [
        {k: v for k, v in row.items() if k != "measurement"} for row in again["front"]
    ]
    assert whole["seeds"] == again["seeds"]
    assert all(0 < row["retrained_loss"] < 6 for row in whole["front"])
