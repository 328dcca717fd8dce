"""Differentiable search among the other methods: constraints hold, each seed is told, killing it changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plait.algorithms.predicted import DevicePredictor
from plait.api.search import adapted
from plait.core.errors import UserError
from plait.data import open_corpus
from plait.device.predictor import Predictor
from plait.device.quantities import Setting
from plait.model.architecture import architecture
from plait.records import open_store
from plait.searching.job import Interrupted, Request, search_front
from plait.space.declaration import Declaration
from plait.space.space import Space
from plait.space.table import load_space
from plait.studies.placement import retrain
from plait.supernet.loss import likeliest
from plait.supernet.settings import Settings, SupernetJob, layer_choices
from plait.training.recipe import Recipe

sys.path.insert(0, str(Path(__file__).parents[1] / "searching"))
from made_up import profile_of

SPACE = Declaration("tiny", "4", "16", [["attn[heads=2]", "mlp[inner=32]", "none"]], "vocab=256", seq=16)
RECIPE = Recipe(batch=32, seq_len=16, lr=1e-2)


@pytest.fixture(scope="module")
def job() -> SupernetJob:
    corpus = open_corpus("builtin:language")
    return SupernetJob(corpus, RECIPE, Settings(steps=60, top=3, patience=1.0), seeds=2)


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


@pytest.mark.parametrize(
    ("slots", "header"),
    [
        ([["attn[heads=2]", "gla[heads=2]"], ["mlp[inner=32]", "none"]], ""),
        ([["attn[heads=2,causal=false]", "mlp[inner=32]", "none"]], "kind=encoder"),
        ([["attn[heads=2|4,share=a]", "gla[heads=2]"], ["mlp[inner=32,share=b]", "none"]], ""),
    ],
    ids=["two slots", "encoder", "shared weights"],
)
def test_any_space_of_layers_is_searched(slots: list[list[str]], header: str, tmp_path: Path) -> None:
    corpus = open_corpus("builtin:language")
    declared = Declaration("s", "2", "16", slots, header, seq=16)
    job = SupernetJob(corpus, RECIPE, Settings(steps=10))
    space = adapted(Space(declared), {}, corpus)
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        result = search_front(
            Request(space, Setting(seq=16), method="gumbel", supernet=job), None, store, tmp_path
        ).result
    assert len(result["choices"]) == 2 * len(slots)
    for row in result["front"]:
        assert architecture(row["spec"]).header.vocab == corpus.vocab + (header == "kind=encoder")
        assert (space.from_spec(row["spec"]) >= 0).all()


def test_the_data_s_vocabulary_is_the_space_s_wherever_that_is_said(job: SupernetJob) -> None:
    mixers = [["attn[heads=2,causal=false]", "none"]]
    space = Space(Declaration("s", "2", "16", mixers, vary={"kind": "encoder", "vocab": "8"}, seq=16))
    assert [header.vocab for header in adapted(space, {}, job.corpus).headers.all if header] == [job.corpus.vocab + 1]


def test_what_a_limit_refuses_gives_way_to_the_next_likely_one(job: SupernetJob) -> None:
    """The constraint about the loss is known only after the first few were looked at; those behind them are not
    lost."""
    mixers, vocab = [["attn[heads=2]", "mlp[inner=32]"]], f"vocab={job.corpus.vocab}"
    space = Space(Declaration("s", "4", "16", mixers, vocab, seq=16))
    search = Request(space, Setting(seq=16), constraints=["loss < 2"], method="gumbel", supernet=job).search(None)
    looked_at: list[tuple[int, ...]] = []

    def loss_of(path: tuple[int, ...]) -> float:
        looked_at.append(path)
        return 9.0 if len(looked_at) <= 2 else 1.0

    search.loss.loss_of = loss_of
    in_order = [path for path, _ in likeliest([np.array([0.6, 0.4])] * 4)]
    left, waiting = iter(in_order), []
    found = search.collect(lambda n: search._propose(left, waiting, n), 4)
    assert len(found) == 4
    assert looked_at == in_order[:6]


def test_rules_that_nothing_likely_satisfies_end_with_a_message(job: SupernetJob, tmp_path: Path) -> None:
    with (
        open_store(f"sqlite:///{tmp_path}/s.db") as store,
        pytest.raises(UserError, match="satisfies every constraint"),
    ):
        search_front(request(job, constraints=["count(attn) == 5"]), None, store, tmp_path)


def test_a_price_on_latency_is_that_of_one_profile(job: SupernetJob) -> None:
    priced = replace(job, settings=Settings(steps=60, penalty="latency"))
    one = request(priced)
    profile = profile_of(one.space, Setting(seq=16))
    predictors = [DevicePredictor(Predictor(profile, Setting(seq=16, batch=batch))) for batch in (1, 2)]
    assert one.search(predictors[0]).key != one.search(predictors[1]).key
    free = request(job)
    assert free.search(predictors[0]).key == free.search(None).key


def test_rules_pass_over_what_is_likelier(job: SupernetJob, tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        record = search_front(request(job, constraints=["count(attn) == 1", "count(mlp) == 2"]), None, store, tmp_path)
    assert record.result["front"]
    for row in record.result["front"]:
        assert sorted(layer.name for layer in architecture(row["spec"]).layers) == ["attn", "mlp", "mlp"]


@pytest.fixture(scope="module")
def whole(job: SupernetJob, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("whole")
    with open_store(f"sqlite:///{folder}/one.db") as store:
        return dict(search_front(request(job), None, store, folder).result)


@pytest.mark.parametrize("stop", [1, 7, 11])
def test_interrupted_after_any_iteration_it_finds_the_same(
    job: SupernetJob, whole: dict[str, Any], tmp_path: Path, stop: int
) -> None:
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


def test_layers_that_read_of_earlier_ones_are_refused_before_anything_is_trained(job: SupernetJob) -> None:
    declared = Declaration("s", "2", "16", [["attn[heads=2]", "cross-attn[heads=2]"]], "vocab=256", seq=16)
    space = Space(declared.with_vocabulary(job.corpus.vocab))
    with pytest.raises(UserError, match="search this space with another method, such as --method lts"):
        Request(space, Setting(seq=16), method="gumbel", supernet=job)


def test_spaces_that_leave_more_than_layers_open_are_refused() -> None:
    with pytest.raises(UserError, match="all layers are the same"):
        layer_choices(Space(Declaration("s", "2..4", "32", [["attn"]], "vocab=9", alike=True)))
    with pytest.raises(UserError, match="--fix layers=16 --fix d=768"):
        layer_choices(load_space("hybrid"))
    with pytest.raises(UserError, match="at most 64"):
        layer_choices(Space(Declaration("s", "4", "32", [["mlp[inner=8..1024 step 8]"]], "vocab=9")))
    narrow = load_space("small-hybrid")
    chosen = {"layers": str(narrow.depths[-1]), "d": str(narrow.widths[0])}
    assert layer_choices(Space(narrow.declared.narrowed(chosen)))
    assert len(layer_choices(load_space("par"))) == 32


def test_retraining_trains_each_once_and_tells_how_far_it_is(job: SupernetJob, tmp_path: Path) -> None:
    specs = [f"d=16 vocab={job.corpus.vocab} | {layers}" for layers in ("attn[heads=2]", "mlp[inner=32]")]
    told: list[float] = []
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        found = retrain([*specs, specs[0]], job, 2, store, tmp_path, on_progress=lambda _, done, of: told.append(done))
    assert list(found.losses) == specs
    assert all(0 < loss < 10 for (loss,) in found.losses.values())
    assert found.as_dict() == {"seeds": 1, "noise": None, "best": found.compared.best}
    assert "noise between seeds is unknown" in found.statement
    # Of two trainings: steps and the last validation count.
    assert {1.0, 2.0} <= set(told)
    assert told == sorted(told)
    assert 0 < told[0] < 1
    assert told[-1] == 2.0


def test_retraining_with_several_seeds_tells_the_noise_and_calls_nothing_below_it_a_difference(
    job: SupernetJob, tmp_path: Path
) -> None:
    """Two widths of one layer differ by less after two steps than two seeds do."""
    specs = [f"d=16 vocab={job.corpus.vocab} | mlp[inner={inner}]" for inner in (32, 33)]
    told: list[float] = []
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        found = retrain(specs, job, 2, store, tmp_path, seeds=2, on_progress=lambda _, done, of: told.append(done))
    assert [len(losses) for losses in found.losses.values()] == [2, 2]
    assert found.compared.noise is not None
    assert sorted(found.as_dict()["best"]) == sorted(specs)
    assert "1 of 1 others are not distinguishable" in found.statement
    assert told == sorted(told)


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


def test_every_supernet_is_asked_about_its_own_architectures(job: SupernetJob, tmp_path: Path) -> None:
    """Two seeds that agree: the second one's supernet has a loss of its own to tell."""
    only = Declaration("only", "2", "16", [["mlp[inner=32]"]], f"vocab={job.corpus.vocab}", seq=16)
    asked = Request(Space(only), Setting(seq=16), method="gumbel", supernet=replace(job, settings=Settings(steps=10)))
    with open_store(f"sqlite:///{tmp_path}/s.db") as store:
        result = search_front(asked, None, store, tmp_path).result
    assert result["evaluated"] == len(result["seeds"]) == 2
    assert result["front"][0]["loss"] == min(seed["loss"] for seed in result["seeds"])


def test_what_it_is_trained_on_is_part_of_what_it_is(job: SupernetJob) -> None:
    assert replace(job, device="cuda:1").as_dict()["device"] == "cuda"
    assert replace(job, device="cuda:1").as_dict() != job.as_dict()


def test_text_for_the_logits_is_not_that_of_the_weights(job: SupernetJob) -> None:
    parts = {stage: corpus.tokens("train") for stage, corpus in job.split().items()}
    whole = job.corpus.tokens("train")
    assert len(parts["architecture"]) == pytest.approx(0.2 * len(whole), rel=1e-3)
    assert np.array_equal(np.concatenate([parts["weights"], parts["architecture"]]), whole)


COMMAND = (
    *("search", "--space", "space.txt", "--method", "gumbel", "--data", "builtin:language", "--steps", "100"),
    *("--seeds", "2", "--set", "batch=32", "--set", "seq_len=16", "--retrain", "10", "--json"),
)
TEXT = """
layers: 3
d: 16
mixers: [attn[heads=2], mlp[inner=32], none]
seq: 16
"""
#: The program itself, saving after every iteration rather than every minute, and resting so long whenever it has.
EAGER = """
import sys, time
from plait.supernet.search import GumbelSearch
from plait.__main__ import main

rest, save = float(sys.argv.pop(1)), GumbelSearch.save

def save_and_rest(search, path):
    save(search, path)
    time.sleep(rest)

GumbelSearch.save_every, GumbelSearch.save = 0.0, save_and_rest
sys.exit(main())
"""


def started(folder: Path, rest: float = 0.0) -> subprocess.Popen[str]:
    folder.mkdir(exist_ok=True)
    (folder / "space.txt").write_text(TEXT)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen([sys.executable, "-c", EAGER, str(rest), *COMMAND], cwd=folder, env=environment, text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip


@pytest.mark.slow
def test_the_command_killed_again_and_again_finds_the_same(tmp_path: Path) -> None:
    whole = json.loads(started(tmp_path / "whole").communicate(timeout=600)[0])
    stopped = []
    for times, how in enumerate((signal.SIGKILL, signal.SIGINT)):
        running = started(tmp_path / "killed", rest=0.3)  # lest it ends before we come to it
        wait_for_save(tmp_path / "killed", times + 2)
        running.send_signal(how)
        running.communicate(timeout=600)
        stopped.append(running.returncode)
    assert stopped == [-signal.SIGKILL, 130]
    again = json.loads(started(tmp_path / "killed").communicate(timeout=600)[0])
    assert whole["front"] == again["front"]
    assert whole["seeds"] == again["seeds"]
    assert all(0 < row["retrained_loss"] < 6 for row in whole["front"])


def wait_for_save(folder: Path, times: int) -> None:
    """Until the checkpoint has been written so often by the process that runs now."""
    seen: set[int] = set()
    deadline = time.monotonic() + 600
    before = {path.stat().st_mtime_ns for path in folder.glob("runs/search-*.npz")}
    while len(seen - before) < times:
        assert time.monotonic() < deadline
        with suppress(FileNotFoundError):
            seen |= {path.stat().st_mtime_ns for path in folder.glob("runs/search-*.npz")}
        time.sleep(0.002)
