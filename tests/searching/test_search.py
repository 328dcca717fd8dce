"""What holds for every method: fronts are fronts, seeds decide, nothing is asked in vain, nothing is lost."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plait.algorithms.evolution import Exhaustive, LtsSearch, RandomSearch, everything
from plait.algorithms.front import Front
from plait.algorithms.nsga import Nsga2, Nsga3
from plait.algorithms.objectives import Predicted, exact
from plait.algorithms.search import Search
from plait.analysis.fronts import hypervolume
from plait.analysis.pareto import pareto_front
from plait.core.errors import UserError
from plait.device.quantities import quantity
from plait.model.architecture import architecture
from plait.records import open_store
from plait.space.declaration import Declaration
from plait.space.space import Space
from plait.space.table import load_space

Make = Callable[..., Search]


def random(space: Space, objectives: Any, iterations: int = 4, **rest: Any) -> Search:
    return RandomSearch(space, objectives, samples=100 * iterations, at_once=100, **rest)


METHODS: dict[str, Make] = {
    "random": random,
    "lts": lambda *args, iterations=4, **rest: LtsSearch(*args, iterations=iterations, start=30, **rest),
    "nsga2": lambda *args, iterations=4, **rest: Nsga2(*args, iterations=iterations, population=30, **rest),
    "nsga3": lambda *args, iterations=4, **rest: Nsga3(*args, iterations=iterations, population=30, **rest),
}
methods = pytest.mark.parametrize("make", METHODS.values(), ids=METHODS)
THREE = ["decoder_params", "flops", "kv_cache"]


@methods
def test_the_front_is_one_and_satisfies_the_constraints(make: Make, small: Space) -> None:
    search = make(small, exact(THREE), constraints=["decoder_params <= 200K"])
    front = search.run()
    costs = search.archive.costs_NM
    assert pareto_front(costs).all()
    assert len(np.unique(costs, axis=0)) == len(costs) == len(front) > 3
    assert search.space.valid(search.archive.genes_NG).all()
    assert max(front.column("decoder_params")) <= 200_000
    assert front.column("decoder_params") == sorted(front.column("decoder_params"), reverse=True)
    assert [small.spec(small.from_spec(text)) for text in front.specs] == front.specs


@methods
def test_the_seed_decides(make: Make) -> None:
    space = load_space("hybrid")
    one, same, other = (make(space, exact(THREE), seed=seed).run().specs for seed in (1, 1, 2))
    assert one == same
    assert one != other


@methods
def test_nothing_is_predicted_in_vain(make: Make, small: Space, stopwatch: Any) -> None:
    search = make(small, [*exact(["decoder_params"]), Predicted("latency", stopwatch)])
    front = search.run()
    assert len(set(stopwatch.asked)) == len(stopwatch.asked) == front.evaluated  # none twice
    asked = np.frombuffer(b"".join(stopwatch.asked), dtype=np.int16).reshape(-1, small.genes)
    assert small.valid(asked).all()  # none that a cheaper constraint refuses
    assert front.proposed > front.evaluated


@methods
@pytest.mark.parametrize("stop", [1, 3])
def test_an_interrupted_search_goes_on_to_the_same_front(make: Make, stop: int, tmp_path: Path) -> None:
    space, path = load_space("hybrid"), tmp_path / "search.npz"
    whole = make(space, exact(THREE), seed=3).run()
    part = make(space, exact(THREE), seed=3)
    for _ in range(stop):
        part.step(np.random.default_rng([part.seed, part.iteration]))
        part.iteration += 1
    part.save(path)
    again = make(space, exact(THREE), seed=3)
    resumed = again.run(path=path)
    assert resumed.rows == whole.rows
    assert (resumed.evaluated, resumed.proposed) == (whole.evaluated, whole.proposed)
    again.save(path)
    finished = make(space, exact(THREE), seed=3)
    steps: list[int] = []
    assert finished.run(path=path, on_step=lambda search: steps.append(search.iteration)).rows == whole.rows
    assert steps == []
    with pytest.raises(UserError, match="another search: its seed differ"):
        make(space, exact(THREE), seed=4).run(path=path)


@methods
def test_a_small_space_is_searched_to_its_end(make: Make) -> None:
    slots = [["attn[heads=2|4|8|16]"], ["mlp[inner=512..704 step 64]"]]
    tiny = Space(Declaration("tiny", layers="3..4", d="512..576 step 64", slots=slots, alike=True))
    search = make(tiny, exact(["decoder_params", "flops"]), iterations=60)
    front = search.run()
    assert front.evaluated == 2 * 2 * 4 * 4
    assert search.exhausted
    # Everything there is, one by one.
    rows = np.array(np.meshgrid(range(2), range(2), range(4), range(4))).reshape(4, -1).T.astype(np.int16)
    columns = tiny.columns(rows)
    costs = np.stack([-columns["decoder_params"], columns["flops"]], axis=1)
    best = np.unique(costs[pareto_front(costs)], axis=0)
    assert np.unique(search.archive.costs_NM, axis=0).tolist() == best.tolist()


@pytest.mark.parametrize("evolve", [LtsSearch, Nsga2, Nsga3])
def test_evolution_beats_chance(evolve: type[Search]) -> None:
    space = load_space("hybrid")
    objectives = exact(["decoder_params", "flops", "kv_cache", "fixed_state"])
    worst = [0.0, 5e11, 1e8, 1e7]
    generations = {} if evolve is LtsSearch else {"population": 100, "iterations": 24}

    def volumes(kind: type[Search], **settings: int) -> list[float]:
        searches = [kind(space, objectives, seed=seed, **settings) for seed in range(2)]  # type: ignore[arg-type]
        assert [search.run().evaluated for search in searches] == [2500, 2500]
        return [hypervolume(search.archive.costs_NM, worst) for search in searches]

    assert min(volumes(evolve, **generations)) > 1.2 * max(volumes(RandomSearch))


@methods
def test_contradictory_constraints_are_explained(make: Make, stopwatch: Any, small: Space) -> None:
    objectives = [*exact(["flops"]), Predicted("latency", stopwatch)]
    search = make(small, objectives, constraints=["latency_high <= 0.1us", "layers <= 2"])
    with pytest.raises(UserError, match="no candidate of small satisfies every constraint") as raised:
        search.run()
    first, *rest = str(raised.value).splitlines()[1:]
    assert first.startswith("0 of 10,000 samples satisfy latency_high <= 0.1us; ")
    assert int(first.split("; ")[1].split()[0].replace(",", "")) > 1000
    assert any("satisfy layers <= 2; 0 fail it alone" in line for line in rest)
    # What comes nearest is said, with what it has: the space's fastest model, two layers at most.
    near = rest[rest.index("nearest to them:") + 1 :]
    assert len(near) == 3
    fastest = RandomSearch(small, objectives, samples=5000).run().column("latency_high")
    assert near[0].startswith(f"  latency {quantity('latency').shown(min(fastest))}: d=32 vocab=64")


@pytest.mark.parametrize("name", ["lts", "nsga2", "nsga3", "random"])
def test_a_search_stops_proposing_where_nothing_is_left(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Constraints leave a few of many: once these are met, a search does not draw millions again and again."""
    monkeypatch.setattr("plait.algorithms.search.MAX_BATCH", 1 << 13)
    attn, mlp = "attn[heads=2|4]", "mlp[inner=32..1024 step 32]"
    declared = Declaration("few", "1..4", "32", [[attn, "gla[heads=2]"], [mlp, "none"]], "vocab=64", seq=32)
    space = Space(declared).with_constraints(["layers <= 1", "count(attn) >= 1"])
    assert space.count > 1_000_000
    search = METHODS[name](space, exact(["decoder_params", "flops"]), iterations=30)
    front = search.run()
    assert front.evaluated == 2 * 33
    assert front.proposed < 400_000


def test_everything_is_every_candidate_once(small: Space) -> None:
    par = load_space("par").declared
    vanishing = Space(replace(par, layers="3", d="64", slots=[["attn[heads=2]", "mlp", "none"]]))
    for space in (small, vanishing, Space(replace(small.declared, alike=True))):
        every = everything(space)
        drawn = np.unique(space.sample(np.random.default_rng(0), 30_000), axis=0)
        assert len(every) == len(np.unique(every, axis=0)) == space.count + (space is vanishing)  # no layer at all
        assert {row.tobytes() for row in drawn} <= {row.tobytes() for row in every}


def test_a_model_without_a_sequence_mixer_is_no_candidate_unless_asked_for() -> None:
    par = Space(replace(load_space("par").declared, layers="4", d="64", header="vocab=64"))
    objectives = exact(["decoder_params", "flops"])
    assert all("attn" in row["spec"] for row in Exhaustive(par, objectives).run().rows)
    blind = Exhaustive(par, objectives, constraints=["count(sequence) >= 0"]).run()
    assert any("attn" not in row["spec"] for row in blind.rows)
    few = Exhaustive(par, objectives, constraints=["count(sequence) == 2", "count(channel) == 1"]).run()
    names = [[layer.name for layer in architecture(row["spec"]).layers] for row in few.rows]
    assert names
    assert all(sorted(each) == ["mlp", "xl-attn", "xl-attn"] for each in names)


def test_a_front_is_plain_data(small: Space, tmp_path: Path) -> None:
    search = METHODS["lts"](small, exact(THREE))
    front = search.run()
    text = json.dumps(front.as_dict())
    assert Front.from_dict(json.loads(text)) == front
    assert set(front.rows[0]) >= {"spec", *THREE, "weights"}
    with pytest.raises(UserError, match="no column 'speed'"):
        front.column("speed")
    with pytest.raises(UserError, match="not a front"):
        Front.from_dict({"front": []})
    with open_store(f"sqlite:///{tmp_path / 'runs.db'}") as store:
        record = search.store(store, started=0.0)
        assert record.key == search.key
        kept = store.get(search.key)
        assert kept is not None
        assert Front.from_dict(kept.result).rows == front.rows
    assert METHODS["lts"](small, exact(THREE), seed=1).key != search.key
    assert METHODS["lts"](small, exact(THREE), constraints=["d <= 64"]).key != search.key


@methods
def test_constraints_on_predictions_cost_few_more_proposals(make: Make, stopwatch: Any, small: Space) -> None:
    """Three of four are refused by their latency: as many more are predicted, and none of them is lost or met twice."""
    everything = make(small, [*exact(["decoder_params"]), Predicted("latency", stopwatch)], iterations=0).first(
        np.random.default_rng(0), 400
    )
    limit = float(np.quantile(everything.columns["latency_high"], 0.25))
    stopwatch.asked.clear()
    search = make(
        small, [*exact(["decoder_params"]), Predicted("latency", stopwatch)], constraints=[f"latency_high <= {limit!r}"]
    )
    found = search.first(np.random.default_rng(1), 80)
    assert len(found) == search.evaluated == 80
    assert max(found.columns["latency_high"]) <= limit
    assert len(stopwatch.asked) < 8 * 80
    # Whatever was drawn beyond the last one needed may still be found.
    assert len(search.seen) <= len(stopwatch.asked)
    more = search.collect(lambda n: search.space.sample(np.random.default_rng(2), n), 40)
    assert not set(map(bytes, more.genes_NG)) & set(map(bytes, found.genes_NG))


def test_what_lies_beyond_the_last_one_needed_was_never_met(small: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round in which everything is refused makes the next one larger; what that has too many stays to be found."""
    search = LtsSearch(small, exact(["decoder_params", "flops"]))
    every, rounds = everything(small)[:40], []
    whole, nothing = search.evaluator.further, search.evaluator.nothing()

    def refusing_at_first(genes: Any, columns: Any) -> Any:
        found, fine = whole(genes, columns)
        rounds.append(len(genes))
        return found, fine & (len(rounds) > 1)

    monkeypatch.setattr(search.evaluator, "further", refusing_at_first)
    monkeypatch.setattr(search.evaluator, "nothing", lambda: nothing)
    assert len(search.collect(lambda n: every, 2)) == 2
    assert rounds == [2, 6]
    assert len(search.seen) == 2 + 2
