"""The verdict: intervals that cover, differences that are paired, words that follow from the numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from plait.probe.findings import findings
from plait.probe.verdict import Comparison, Score, document, verdict
from plait.spec import presets

TASKS = ["recall", "compression"]


def scores(table: dict[str, dict[str, list[float]]], sequences: int = 256) -> list[Score]:
    return [
        Score(name, task, "only", seed, accuracy, 1 - accuracy, sequences)
        for name, row in table.items()
        for task, accuracies in row.items()
        for seed, accuracy in enumerate(accuracies)
    ]


def compared(table: dict[str, dict[str, list[float]]], sequences: int = 256) -> Comparison:
    return Comparison(list(table), list(next(iter(table.values()))), scores(table, sequences))


def test_means_over_seeds_settings_and_tasks():
    found = [
        Score("a", task, setting, seed, value, None if value == 0.0 else value, 100)
        for task, setting, seed, value in [
            ("x", "1", 0, 0.0), ("x", "1", 1, 0.4), ("x", "2", 0, 0.6), ("x", "2", 1, 1.0), ("y", "1", 0, 0.1),
        ]
    ]  # fmt: skip
    c = Comparison(["a"], ["x", "y"], found)
    assert c.accuracy("a", "x").value == pytest.approx(0.5)
    assert c.accuracy("a").value == pytest.approx(0.3)
    assert c.loss("a", "x") is None, "a seed without a loss has no mean loss"
    assert c.loss("a", "y") == pytest.approx(0.1)
    assert c.loss("a") is None


def test_a_missing_cell_is_our_mistake():
    with pytest.raises(AssertionError, match="lacks"):
        Comparison(["a", "b"], ["x"], [Score("a", "x", "1", 0, 0.5, 1.0, 10), Score("b", "x", "1", 1, 0.5, 1.0, 10)])


#: Jeffreys' 95 % interval of a share of 200 (Brown, Cai and DasGupta 2001).
JEFFREYS = {0.0: (0.0, 0.0125), 0.03: (0.0124, 0.0612), 0.5: (0.4312, 0.5688), 1.0: (0.9875, 1.0)}


@pytest.mark.parametrize("accuracy", JEFFREYS)
def test_one_seed_has_the_interval_of_a_share(accuracy):
    found = compared({"a": {"x": [accuracy]}}, sequences=200).accuracy("a")
    assert (found.low, found.high) == pytest.approx(JEFFREYS[accuracy], abs=0.004)
    assert 0 <= found.low <= accuracy <= found.high <= 1


def test_intervals_cover_the_truth_as_often_as_they_say():
    """Five seeds around a true mean, each tested on few sequences."""
    stream = np.random.default_rng(0)
    inside = 0
    for _ in range(100):
        seeds = np.clip(stream.normal(0.6, 0.1, size=5), 0, 1)
        tested = stream.binomial(100, seeds) / 100
        found = compared({"a": {"x": tested.tolist()}}, sequences=100).accuracy("a")
        inside += found.low <= 0.6 <= found.high
    assert 85 <= inside <= 100


def test_differences_are_paired_by_seed():
    """Seeds that are hard are hard for both: the difference is clear although the intervals overlap."""
    hard = [0.3, 0.5, 0.7, 0.9, 0.4, 0.8]
    c = compared({"a": {"x": [x + 0.05 for x in hard]}, "b": {"x": hard}}, sequences=100_000)
    assert c.accuracy("a").low < c.accuracy("b").high
    difference = c.difference("a", "b")
    assert difference.value == pytest.approx(0.05)
    assert difference.sign == 1
    assert c.difference("b", "a").sign == -1


def test_ranks_and_ties():
    c = compared({"a": {"x": [0.5]}, "b": {"x": [0.9]}, "c": {"x": [0.1]}})
    assert [c.rank(name) for name in "abc"] == [2, 1, 3]
    tied = [Score("a", "x", "1", 0, 1.0, 0.2, 10), Score("b", "x", "1", 0, 1.0, 0.1, 10)]
    assert Comparison(["a", "b"], ["x"], tied).rank("b") == 1
    diverged = [Score("a", "x", "1", 0, 0.0, None, 10), Score("b", "x", "1", 0, 0.0, 9.0, 10)]
    assert Comparison(["a", "b"], ["x"], diverged).rank("a") == 2


def test_the_same_scores_give_the_same_document():
    table = {"a": {"x": [0.5, 0.6], "y": [0.2, 0.3]}, "b": {"x": [0.1, 0.2], "y": [0.9, 0.8]}}
    assert document(compared(table)) == document(compared(table))
    names = [row["name"] for row in document(compared(table))]
    assert names == ["b", "a"], "the best first"


def test_words():
    c = compared({
        "mine": {"recall": [0.95, 0.96, 0.94], "compression": [0.50, 0.52, 0.51]},
        "weak": {"recall": [0.30, 0.31, 0.29], "compression": [0.49, 0.53, 0.51]},
        "twin": {"recall": [0.95, 0.95, 0.95], "compression": [0.51, 0.51, 0.51]},
        "other": {"recall": [0.60, 0.60, 0.60], "compression": [0.86, 0.86, 0.86]},
    })  # fmt: skip
    said = verdict(c, ["mine"])
    assert said.startswith("mine: mean accuracy 0.73 (")
    assert "better than weak overall" in said
    assert "not distinguishable from twin and other overall" in said
    assert "better than other on recall" in said
    assert "worse than other on compression" in said
    assert "What decided it: recall (+0.65 against weak)." in said
    assert "weak on recall" not in said, "overall says it already"


def test_words_where_nothing_differs():
    c = compared({"a": {"x": [0.5, 0.6]}, "b": {"x": [0.55, 0.54]}})
    assert "not distinguishable from b overall" in verdict(c, ["a"])
    assert "more seeds may tell" in verdict(c, ["a"])
    assert verdict(compared({"a": {"x": [0.5]}}), ["a"]).endswith("rank 1 of 1.")


def test_findings_are_differences_between_groups_of_the_21():
    names = presets.suite("mad21")
    striped, heads, experts = 0.10, 0.03, 0.02

    def accuracy(name: str) -> float:
        return 0.5 + striped * ("striped" in name) + heads * ("mh-hyena" in name) + experts * name.endswith("moe")

    found = [
        Score(name, task, "1", seed, accuracy(name), 1.0, 100_000)
        for name, task, seed in itertools.product(names, TASKS, range(2))
    ]
    rows = findings(Comparison(names, TASKS, found))
    assert [row["paper"] for row in rows] == [0.081, 0.023, 0.017]
    assert rows[1]["difference"] == pytest.approx(heads)
    assert rows[2]["difference"] == pytest.approx(experts)
    assert rows[0]["difference"] == pytest.approx(striped, abs=0.01)
    assert all(row["interval"][0] <= row["difference"] <= row["interval"][1] for row in rows)
