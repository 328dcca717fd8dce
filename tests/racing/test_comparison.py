"""Comparisons of real, tiny trainings: copies, worse ones, one alone, diverged ones, and the document."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from plait.racing.comparison import Comparison, compare
from plait.racing.contenders import Contender, read_contenders
from plait.racing.document import comparison_result
from plait.racing.leg import Course
from plait.racing.planning import Terms
from plait.racing.rates import _rates_beyond as beyond
from plait.racing.rates import best_rate, stacks
from plait.records import Store, open_store
from plait.records.comparison import ComparisonResult
from plait.reporting.comparison import ranking, verdict_sentence
from plait.training.track import Replica

SMALL, LARGE = "d=16 | attn[heads=2] swiglu", "d=24 | gla[heads=2] swiglu"
TERMS = Terms(seeds=2, tokens=64 * 32)


def compared(course: Course, store: Store, tmp_path: Path, *specs: str, terms: Terms = TERMS) -> Comparison:
    return compare(read_contenders(specs, 32), course, terms, store, tmp_path)


@pytest.fixture(scope="module")
def pair(course: Course, tmp_path_factory: pytest.TempPathFactory) -> Comparison:
    folder = tmp_path_factory.mktemp("pair")
    with open_store(f"sqlite:///{folder}/plait.db") as store:
        return compared(course, store, folder, SMALL, LARGE)


def test_copies_are_not_distinguishable(course: Course, store: Store, tmp_path: Path) -> None:
    found = compared(course, store, tmp_path, SMALL, SMALL)
    one, other = comparison_result(found).architectures
    assert (one.name, other.name) == ("attn swiglu", "attn swiglu-2")
    assert (one.loss, one.curve, one.lr) == (other.loss, other.curve, other.lr)
    (pair,) = comparison_result(found).paired
    assert (pair.difference, pair.verdict) == (0.0, "not distinguishable")
    assert "not distinguishable" in found.compared.verdict


def test_the_document_is_plain_and_whole(pair: Comparison) -> None:
    result = comparison_result(pair, ["a note"])
    found = result.as_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert ComparisonResult.from_dict(found) == result
    assert ComparisonResult.from_dict({**found, "of_a_later_version": 1}) == result
    assert {"architectures", "paired", "noise", "verdict", "cost"} <= set(found)
    for row in found["architectures"]:
        assert {"name", "spec", "loss", "interval", "seeds", "tokens", "lr", "curve", "p_best"} <= set(row)
        assert [tokens for tokens, _ in row["curve"]] == [128, 256, 512, 1024, 2048]
        assert row["curve"][-1][1] == pytest.approx(row["loss"], abs=1e-5)
        assert row["interval"][0] < row["loss"] < row["interval"][1]
        assert row["rates"][f"{row['lr']:g}"] == min(row["rates"].values())
    assert sum(row["p_best"] for row in found["architectures"]) == pytest.approx(1)
    assert found["noise"] > 0
    tokens = [row["tokens"] for row in found["foresight"]]
    assert tokens[-1] == 8 * 2048
    assert tokens == sorted(tokens)


def test_the_verdict_tells_by_how_much_the_lowest_two_differ(pair: Comparison) -> None:
    found = comparison_result(pair)
    best, other = sorted(found.architectures, key=lambda row: row.loss)
    (pair,) = found.paired
    low, high = sorted(abs(end) if abs(end) > 0 else end for end in pair.interval)
    told = verdict_sentence(found)
    assert told.startswith(f"After 2.05 k tokens {found.verdict}. {other.name} is ")
    assert f"{other.loss - best.loss:.3f} (" in told
    if pair.verdict == best.name:  # both ends on one side of 0
        assert f"({low:.3f} to {high:.3f}) nats per token above {best.name}." in told


def test_differences_are_shown_as_the_verdict_judges_them(pair: Comparison) -> None:
    """With the corrected interval; a record of an earlier version has only that of the pair alone."""
    document = comparison_result(pair).as_dict()
    (one,) = document["paired"]
    one["corrected_interval"] = (one["interval"][0] - 1, one["interval"][1] + 1)
    second = ranking(ComparisonResult.from_dict(document))[1]
    assert second.interval is not None
    assert second.interval[1] - second.interval[0] == pytest.approx(one["interval"][1] - one["interval"][0] + 2)
    turned = {**one, "a": one["b"], "b": one["a"], "difference": -one["difference"]}
    turned["corrected_interval"] = tuple(-end for end in reversed(one["corrected_interval"]))
    assert ranking(ComparisonResult.from_dict({**document, "paired": [turned]}))[1] == second
    del one["corrected_interval"]
    former = ranking(ComparisonResult.from_dict(document))[1]
    assert sorted(map(abs, former.interval or ())) == sorted(map(abs, one["interval"]))


def test_nothing_is_foreseen_from_the_warm_up(course: Course, store: Store, tmp_path: Path) -> None:
    slow = replace(course, recipe=replace(course.recipe, warmup=12))
    terms = replace(TERMS, search_rates=False)
    found = compared(slow, store, tmp_path, SMALL, LARGE, terms=terms)
    assert found.foresight is not None
    assert [tokens for tokens, _ in found.rows[0].curve] == [128, 256, 512, 1024, 2048]
    assert found.foresight.rows[0].tokens == 2048  # 64 steps, the one budget with 36 or more
    slower = replace(course, recipe=replace(course.recipe, warmup=30))
    assert compared(slower, store, tmp_path, SMALL, LARGE, terms=terms).foresight is None


def test_one_alone(course: Course, store: Store, tmp_path: Path) -> None:
    found = compared(course, store, tmp_path, SMALL)
    (row,) = comparison_result(found).architectures
    assert row.interval is not None
    assert row.p_best == 1.0
    assert found.compared.verdict == "attn swiglu alone"
    assert found.foresight is None


def test_what_diverges_loses(course: Course, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from plait.racing.leg import Leg
    from plait.training.track import Replica

    run = Leg.run

    def diverging(leg: Leg, *given: object) -> None:
        if "gla" in leg.arch.text:  # trained at a rate that no model bears, kept as what was asked for
            text, keep, *rest = given
            wild = replace(leg, replicas=tuple(Replica(1e30, r.seed) for r in leg.replicas))
            kept = iter([(steps, r) for steps in leg.budgets for r in leg.replicas])

            def keep_as(record):
                steps, replica = next(kept)
                config = leg.course.config(leg.arch, replica, steps)
                keep(type(record).of(record.kind, config, record.result, record.provenance))

            run(wild, text, keep_as, *rest)
        else:
            run(leg, *given)

    monkeypatch.setattr(Leg, "run", diverging)
    found = comparison_result(compared(course, store, tmp_path, SMALL, LARGE))
    good, bad = found.architectures
    assert (bad.loss, bad.interval, bad.diverged, bad.p_best) == (None, None, 2, 0.0)
    assert found.verdict == f"{good.name} is best"
    assert found.paired[0].verdict == good.name
    assert [row.verdict for row in ranking(found)] == ["lowest loss", "diverged"]
    assert verdict_sentence(found) == f"After 2.05 k tokens {good.name} is best."


def test_a_further_seed_costs_only_itself(course: Course, store: Store, tmp_path: Path) -> None:
    compared(course, store, tmp_path, SMALL)
    before = len(list(store.find("track")))
    found = compared(course, store, tmp_path, SMALL, terms=replace(TERMS, seeds=3))
    assert len(list(store.find("track"))) == before + 5  # rungs
    assert comparison_result(found).architectures[0].seeds == 3


def test_without_a_search_all_have_one_rate(course: Course, store: Store, tmp_path: Path) -> None:
    terms = replace(TERMS, search_rates=False, tokens=None, flops=1e7, equal="flops", lr=3e-3)
    rows = comparison_result(compared(course, store, tmp_path, SMALL, LARGE, terms=terms)).architectures
    assert {row.lr for row in rows} == {3e-3}
    assert rows[0].tokens > rows[1].tokens
    for row in rows:
        assert row.tokens * row.flops_per_token == pytest.approx(1e7, rel=0.1)


def test_the_search_goes_on_beyond_its_edge() -> None:
    assert beyond({1.0: 2.0, 2.0: 1.0, 4.0: 3.0}) == []
    assert beyond({1.0: 1.0, 2.0: 2.0, 4.0: 3.0}) == [0.5]
    assert beyond({1.0: 3.0, 2.0: 2.0, 4.0: 1.0}) == [8.0]
    assert beyond({1.0: math.inf, 2.0: math.inf}) == [0.5]
    assert best_rate({1.0: 2.0, 2.0: 1.0, 4.0: 1.0}, 9.0) == 2.0
    assert best_rate({}, 9.0) == 9.0


def test_contenders_of_a_file_have_its_name(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text(SMALL)
    (one,) = read_contenders([str(tmp_path / "mine.txt")], 32)
    assert isinstance(one, Contender)
    assert one.name == "attn swiglu"


def test_where_nothing_is_left_to_train_nothing_is_stacked(course: Course) -> None:
    on_gpu, pair = replace(course, device="cuda"), [Replica(1e-3, 0), Replica(2e-3, 0)]
    assert stacks([], on_gpu) == stacks([], course) == []
    assert stacks(pair, on_gpu) == [tuple(pair)]
    assert stacks(pair, course) == [(pair[0],), (pair[1],)]
