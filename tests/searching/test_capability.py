"""Capability: learnt from probe records whose truth is known, measured where a pattern was probed, refused without."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from plait.algorithms.evolution import RandomSearch
from plait.algorithms.objectives import Batch, Evaluator
from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.probing.protocol import Candidate, Protocol, quick
from plait.probing.trial import KIND, Trial
from plait.records import Record, Store
from plait.searching.capability import FEWEST, Capability, Ridge
from plait.space import objective_table as table
from plait.space.compositions import repeats, shortest
from plait.space.declaration import Declaration
from plait.space.space import Space

TASKS = ("in-context-recall", "compression", "memorization")
MIXERS = {"attn": "attn[heads=1]", "gla": "gla[heads=1]", "hyena": "hyena[state=2]", "linear": "linear[heads=1]"}
#: What a layer of each kind adds; recall needs attention, compression is hurt by it.
WORTH = {"attn": (0.6, 0.1, 0.3), "gla": (0.2, 0.3, 0.3), "hyena": (0.3, 0.2, 0.2), "linear": (0.0, 0.2, 0.1)}


def truth(names: tuple[str, ...]) -> np.ndarray:
    """Accuracy on each task: the mean of the layers' worth, and a bonus for stripes."""
    return 0.2 + np.mean([WORTH[name] for name in names], axis=0) + 0.1 * (len(set(names)) > 1)


def probe_record(names: tuple[str, ...], task: str, accuracy: float, by: Protocol, **changes: Any) -> Record:
    body = " ".join(f"{MIXERS[name]} swiglu[inner=48]" for name in names)
    one = Candidate(" ".join(names), architecture(f"d=32 vocab=16 | {body}"))
    (setting,) = (s for s in by.settings if s.task.name == task)
    trial = Trial.of(one, setting, (0, 1))
    seeds = [{"seed": seed, "accuracy": accuracy + sign * 0.01} for seed, sign in ((0, -1), (1, 1))]
    return Record.of(KIND, {**trial.config, **changes}, {"accuracy": accuracy, "seeds": seeds}, {})


def records(mixes: list[tuple[str, ...]]) -> list[Record]:
    protocol = quick(TASKS)
    return [
        probe_record(names, task, float(value), protocol)
        for names in mixes
        for task, value in zip(TASKS, truth(names), strict=True)
    ]


PAIRS = list(itertools.product(MIXERS, repeat=2))


@pytest.fixture(scope="module")
def space() -> Space:
    mixers = [*MIXERS.values()]
    return Space(Declaration("mixes", "2|4", "32|64", [mixers, ["swiglu[inner=48]", "mlp[inner=48]", "none"]], seq=16))


def scored(capability: Capability, space: Space, *texts: str) -> dict[str, np.ndarray]:
    genes_NG = np.stack([space.from_spec(text) for text in texts])
    return capability.columns(Batch(space, genes_NG, space.columns(genes_NG)))


def spec(*names: str, channel: str = "swiglu[inner=48]", d: int = 64) -> str:
    return f"d={d} | " + " ".join(f"{MIXERS[name]} {channel}" for name in names)


def test_a_probed_pattern_is_measured_at_any_size(space: Space) -> None:
    capability = Capability(records(PAIRS))
    texts = [spec("attn", "gla"), spec("attn", "gla", "attn", "gla"), spec("hyena", "hyena", d=32)]
    found = scored(capability, space, *texts)
    wanted = [truth(names).mean() for names in (("attn", "gla"), ("attn", "gla"), ("hyena", "hyena"))]
    assert found["capability"] == pytest.approx(np.array(wanted), abs=1e-9)
    # Two seeds whose means over tasks are 0.02 apart: Student's t with one degree of freedom.
    half = 12.706205 * 0.02 / np.sqrt(2) / np.sqrt(2)
    assert found["capability_high"] - found["capability"] == pytest.approx(half, rel=1e-5)
    assert found["capability"] - found["capability_low"] == pytest.approx(half, rel=1e-5)


def test_what_was_not_probed_is_predicted_within_its_error_bar(space: Space) -> None:
    capability = Capability(records(PAIRS))
    mixes = [names for names in itertools.product(MIXERS, repeat=4) if names[:2] != names[2:]]
    found = scored(capability, space, *(spec(*names) for names in mixes))
    wanted = np.array([truth(names).mean() for names in mixes])
    off = np.abs(found["capability"] - wanted)
    assert off.max() < 0.04
    assert np.corrcoef(found["capability"], wanted)[0, 1] > 0.95
    assert (wanted <= found["capability_high"]).mean() > 0.9
    assert (found["capability_low"] <= wanted).mean() > 0.9
    assert capability.error < 0.03


def test_noise_in_the_records_widens_the_error_bar(space: Space) -> None:
    rng, protocol = np.random.default_rng(0), quick(TASKS)
    noisy = [
        probe_record(names, task, float(value + rng.normal(0, 0.1)), protocol)
        for names in PAIRS
        for task, value in zip(TASKS, truth(names), strict=True)
    ]
    assert Capability(noisy).error > 2 * Capability(records(PAIRS)).error


def test_the_left_out_error_is_what_refitting_gives() -> None:
    rng = np.random.default_rng(0)
    x_NF, y_NT = rng.normal(size=(12, 4)), rng.normal(size=(12, 2))
    ridge = Ridge(x_NF, y_NT)
    z = np.column_stack([np.ones(12), (x_NF - x_NF.mean(0)) / x_NF.std(0)])
    penalty = np.diag([0.0, *[ridge.penalty] * 4])
    squares = []
    for out in range(12):
        kept = np.arange(12) != out
        w = np.linalg.solve(z[kept].T @ z[kept] + penalty, z[kept].T @ y_NT[kept])
        squares.append((z[out] @ w - y_NT[out]).mean() ** 2)
    assert ridge.error == pytest.approx(np.sqrt(np.mean(squares)))


def test_a_channel_mixer_that_was_never_probed_is_no_obstacle(space: Space) -> None:
    found = scored(Capability(records(PAIRS)), space, spec("attn", "gla", channel="mlp[inner=48]"))
    assert 0.3 < found["capability"][0] < 0.8
    assert found["capability_high"][0] > found["capability"][0]


def test_too_few_records_say_what_would_give_more(space: Space) -> None:
    with pytest.raises(UserError, match=rf"at least {FEWEST} architectures.* 0 found.*plait probe --suite mad21"):
        Capability()
    with pytest.raises(UserError, match=f"{FEWEST - 1} found"):
        Capability(records(PAIRS[: FEWEST - 1]))
    without = [names for names in PAIRS if "hyena" not in names]
    with pytest.raises(UserError, match=r"no probe record has hyena.*`plait probe hyena --seeds 1`"):
        Evaluator(space, [Capability(records(without))]).nothing()


def test_only_what_can_be_compared_is_used() -> None:
    protocol = quick(TASKS)
    good = records(PAIRS)
    half = {**good[0].config["training"], "steps": 7}
    other = [probe_record(names, TASKS[0], 0.9, protocol, training=half) for names in PAIRS[:5]]
    mine = [probe_record(names, TASKS[0], 0.9, protocol, mixer="my own") for names in PAIRS]
    old = [probe_record(names, TASKS[0], 0.9, protocol, protocol=0) for names in PAIRS]
    alone, all_ = Capability(good), Capability([*other, *mine, *old, *good])
    assert alone.as_dict() == all_.as_dict()
    assert alone.error == all_.error
    assert alone.records == len(good)
    assert f"{len(good)} probe records of {len(PAIRS)} architectures" in str(alone)


def test_an_architecture_without_a_task_is_left_out() -> None:
    capability = Capability(records(PAIRS)[:-1])
    assert len(capability.probed) == len(PAIRS) - 1
    assert capability.tasks == tuple(sorted(TASKS))


def test_from_a_store(tmp_path: Any, space: Space) -> None:
    with Store(f"sqlite:///{tmp_path}/plait.db") as store:
        for record in records(PAIRS):
            store.put(record)
        assert Capability.from_store(store).as_dict() == Capability(records(PAIRS)).as_dict()
    assert table.load("capability") is Capability


def test_alike_layers_and_no_candidates() -> None:
    capability = Capability(records(PAIRS))
    alike = Space(Declaration("alike", "2..4", "32", [[*MIXERS.values()], ["swiglu[inner=48]"]], alike=True, seq=16))
    genes_NG = alike.sample(np.random.default_rng(0), 50)
    found = capability.columns(Batch(alike, genes_NG, alike.columns(genes_NG)))
    names = [next(name for name in MIXERS if f" {name}" in alike.spec(row).replace("(", " ")) for row in genes_NG]
    assert found["capability"] == pytest.approx(np.array([truth((name,)).mean() for name in names]), abs=1e-9)
    assert len(Evaluator(alike, [capability]).nothing()) == 0


def test_patterns() -> None:
    assert shortest(["a", "b", "a", "b"]) == ("a", "b")
    assert shortest(["a", "b", "a"]) == ("a", "b", "a")
    assert shortest(["a"] * 6) == ("a",)
    kinds = np.array([[0, 1, 0, 1], [0, 1, 0, -1], [0, 1, -1, -1], [1, 0, 1, 0], [-1, -1, -1, -1]])
    assert repeats(kinds, [0, 1]).tolist() == [True, False, True, False, False]


def test_a_search_by_capability_finds_the_best_mix(space: Space) -> None:
    capability = Capability(records(PAIRS))
    search = RandomSearch(space, [capability], samples=500, constraints=["capability_high >= 0.5", "layers == 2"])
    best = search.run().rows[0]
    # Stripes with attention: nothing that was probed is better.
    assert best["capability"] == pytest.approx(max(truth(names).mean() for names in PAIRS), abs=0.02)
    assert "attn" in best["spec"]
    assert search.config()["objectives"][0]["records"] == len(records(PAIRS))
