"""From a request to a stored front."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from made_up import profile_of

from plait.algorithms.front import Front
from plait.algorithms.predicted import DevicePredictor
from plait.algorithms.proxies import PROXIES
from plait.algorithms.search import Search
from plait.core.errors import UserError
from plait.data import open_corpus
from plait.device.predictor import Predictor
from plait.device.quantities import Setting
from plait.records import Record, open_store
from plait.searching.job import GUMBEL, METHODS, Interrupted, Request, default_objectives, search_front
from plait.searching.validation import Validated, document
from plait.space.constraints import Limits
from plait.space.declaration import Declaration
from plait.space.space import Space
from plait.space.table import load_space, names

SETTING = Setting(seq=32)
LIMITS = Limits.read(latency="2ms", memory="3MB")


@pytest.fixture(scope="module")
def device(small: Space) -> DevicePredictor:
    return DevicePredictor(Predictor(profile_of(small, SETTING), SETTING))


def test_experts_do_not_count_while_they_idle() -> None:
    for name in names():
        space = load_space(name)
        experts = "moe" in str(space.declared.slots)
        assert experts == (name == "hybrid")
        assert default_objectives(space)[0] == ("active_decoder_params" if experts else "decoder_params")


def test_layers_that_do_not_fit_a_width_cost_nothing() -> None:
    """Two heads of gated DeltaNet's width do not fit into 64 at all: nothing is divided by their number."""
    mixers = [["gated-deltanet", "moe[active=1]", "gla"]]
    space = Space(Declaration("s", "1..2", "64|256", mixers, "vocab=50", seq=8, constraints=["count(sequence) >= 0"]))
    assert default_objectives(space)[0] == "active_decoder_params"
    everything = np.array([[0, width, option, 0] for width in (0, 1) for option in (0, 1, 2)], dtype=np.int16)
    assert space.valid(everything).tolist() == [False, True, True, True, True, True]


@pytest.mark.parametrize("method", [method for method in METHODS if method != GUMBEL])
def test_every_method_holds_the_limits(method: str, small: Space, device: DevicePredictor, tmp_path: Path) -> None:
    size = {} if method == "exhaustive" else {"iterations": 3, "population": 20}
    request = Request(small, SETTING, limits=LIMITS, constraints=["layers <= 2"], method=method, **size)
    with open_store(f"sqlite:///{tmp_path}/runs.db") as store:
        record = search_front(request, device, store, tmp_path)
        assert search_front(request, device, store, tmp_path) == record  # found, not searched again
        other = Request(small, SETTING, limits=LIMITS, method=method, seed=1, **size)
        assert search_front(other, device, store, tmp_path).key != record.key
    front = Front.from_dict(record.result)
    assert record.result["evaluated"] >= {"random": 60, "lts": 20 + 3 * 8}.get(method, 40)
    assert [each["objective"] for each in front.objectives] == ["decoder_params", "latency", "memory"]
    assert max(front.column("latency_high")) <= 2e-3
    assert max(front.column("memory_high")) <= 3e6
    assert record.result["limits"] == {"latency": 2e-3, "memory": 3e6}
    assert record.result["cost"]["profile_seconds"] == 60.0
    assert not list(tmp_path.glob("search-*"))  # a finished search needs no checkpoint


def test_published_sizes(small: Space, device: DevicePredictor) -> None:
    large = Space(replace(small.declared, layers="1..8"))
    search = Request(large, SETTING).search(device)
    assert search.settings() == {"start": 100, "parents": 20, "mutants": 40, "crossovers": 40, "mutation": 0.3}
    doubled = Request(small, SETTING, population=200).search(device).settings()
    assert [doubled[name] for name in ("start", "parents", "mutants", "crossovers")] == [200, 40, 80, 80]
    assert Request(large, SETTING, method="random").search(device).settings()["samples"] == 2500
    # A small space is compared whole, whatever the method, unless it is told how long to look.
    assert Request(small, SETTING, method="nsga3").search(device).method == "exhaustive"
    assert Request(small, SETTING, method="nsga3", iterations=3).search(device).method == "nsga3"
    with pytest.raises(UserError, match="neither iterations nor a population"):
        Request(small, SETTING, method="exhaustive", iterations=3).search(device)
    with pytest.raises(UserError, match="exhaustive compares at most 1,048,576"):
        Request(large, SETTING, method="exhaustive").search(device)


def test_a_limit_makes_its_quantity_an_objective(small: Space) -> None:
    request = Request(small, SETTING, ["max:flops", "min:latency"], Limits(memory=1e6))
    assert request.names() == ["max:flops", "latency", "memory"]
    exact_only = Request(small, SETTING, ["decoder_params", "flops"], Limits(state=1e5))
    assert not exact_only.asks_device
    front = exact_only.search(None).run()
    assert max(front.column("state")) <= 1e5


@pytest.mark.parametrize("name", PROXIES)
def test_every_proxy_is_an_objective_where_there_is_text(name: str, small: Space, tmp_path: Path) -> None:
    corpus = open_corpus("builtin:language")
    space = Space(small.declared.with_vocabulary(corpus.vocab))
    request = Request(space, SETTING, [name, "flops"], method="random", iterations=1, population=3, corpus=corpus)
    with open_store(f"sqlite:///{tmp_path}/runs.db") as store:
        record = search_front(request, None, store, tmp_path)
    assert record.result["evaluated"] == 3
    assert [one["objective"] for one in record.result["objectives"]] == [name, "flops"]
    assert all(isinstance(row[name], float) for row in record.result["front"])


def test_text_that_nothing_looks_at_is_refused(small: Space) -> None:
    with pytest.raises(UserError, match="--data is for --method gumbel and for proxies as objectives: snip"):
        Request(small, SETTING, ["flops"], corpus=open_corpus("builtin:language"))


def test_one_schema_whoever_stored_the_search(small: Space, tmp_path: Path) -> None:
    """A Python call's record has what the command's has, and a limit may be what its constraint said already."""
    request = Request(small, SETTING, ["decoder_params", "flops"], Limits(state=2e4), iterations=3, population=20)
    with open_store(f"sqlite:///{tmp_path}/runs.db") as store:
        search = request.search(None)
        search.run()
        stored = search.store(store, started=0.0)
        assert stored.result["limits"] == {}
        found = search_front(request, None, store, tmp_path, lambda search: pytest.fail("searched again"))
        assert found.key == stored.key
        assert found.result["limits"] == {"state": 2e4}
        assert set(found.result) == set(stored.result)
        assert found.result["front"] == stored.result["front"]
        assert document(found, Validated())["cost"]["search_seconds"] >= 0
        assert store.get(stored.key) == found
        # A record of an earlier layout says neither limits nor setting.
        old = {
            name: stored.result[name] for name in ("space", "method", "objectives", "front", "evaluated", "proposed")
        }
        store.delete([stored.key])
        store.put(Record.of("search", stored.config, {**old, "cost": {"seconds": 2.5}}, stored.provenance))
        again = search_front(request, None, store, tmp_path)
        assert document(again, Validated())["cost"]["search_seconds"] == 2.5


def test_capability_is_learnt_from_the_store(small: Space, tmp_path: Path) -> None:
    request = Request(small, SETTING, ["max:capability", "flops"])
    assert request.names() == ["capability", "flops"]
    with open_store(f"sqlite:///{tmp_path}/runs.db") as store, pytest.raises(UserError, match="plait probe"):
        search_front(request, None, store, tmp_path)


def test_interrupted_it_goes_on_to_the_same_front(small: Space, device: DevicePredictor, tmp_path: Path) -> None:
    request = Request(small, SETTING, iterations=6, population=20)
    whole = request.search(device).run()

    def interrupt(search: Search) -> None:
        if search.iteration == 3:
            os.kill(os.getpid(), signal.SIGINT)

    with open_store(f"sqlite:///{tmp_path}/runs.db") as store:
        with pytest.raises(Interrupted, match="stopped after 3 of 7 iterations"):
            search_front(request, device, store, tmp_path, interrupt)
        assert len(list(tmp_path.glob("search-*.npz"))) == 1
        steps: list[int] = []
        record = search_front(request, device, store, tmp_path, lambda search: steps.append(search.iteration))
    assert steps == [4, 5, 6, 7]
    assert record.result["front"] == whole.as_dict()["front"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"method": "nsga"}, "unknown method 'nsga'. Did you mean 'nsga[23]'"),
        ({"objectives": ["latensy"]}, "unknown objective 'latensy'. Did you mean 'latency'"),
        ({"objectives": ["snip"]}, "snip is a score of a built model on text: give --data, as builtin:stdlib"),
        ({"objectives": ["max:latency"]}, "of latency there is only min:latency"),
    ],
)
def test_mistakes_are_told_before_anything_is_profiled(given: dict[str, object], message: str, small: Space) -> None:
    with pytest.raises(UserError, match=message):
        Request(small, SETTING, **given)  # type: ignore[arg-type]


def test_the_impossible_is_told_without_a_profile(small: Space) -> None:
    Request(small, SETTING, limits=LIMITS, constraints=["layers <= 2"]).check_possible()
    for impossible in (
        Request(small, SETTING, constraints=["layers >= 2", "layers <= 1"]),
        Request(small, SETTING, limits=Limits.read(latency="2ms", state="1B")),
        Request(small, SETTING, limits=Limits.read(memory="10KB")),
    ):  # fmt: skip (the weights alone are more)
        with pytest.raises(UserError, match="no candidate of small satisfies every constraint"):
            impossible.check_possible()


def test_more_tokens_than_positions() -> None:
    learned = Declaration("s", "1", "32", [["gla"]], "vocab=50", vary={"pos": "none|learned", "max_len": "16|64"})
    with pytest.raises(UserError, match="32 tokens asked for, but models of s have 16 positions"):
        Request(Space(learned), SETTING)
    with pytest.raises(UserError, match="2000 tokens asked for, but models of lts-gpt2 have 1024 positions"):
        Request(load_space("lts-gpt2"), Setting(seq=2000))
