"""The verdict: intervals that cover, differences that are paired, words that follow from the numbers."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from plait.probing.verdict import Comparison, Score, document, findings, verdict
from plait.reporting.view_probe import score_of
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


def test_one_seed_has_no_interval_and_no_verdict():
    c = compared({"a": {"x": [0.9], "y": [0.8]}, "b": {"x": [0.1], "y": [0.2]}})
    assert c.accuracy("a").interval is None
    assert c.difference("a", "b").interval is None
    assert c.noise() is None
    assert set(c.signs("a").overall.values()) == {0}
    assert document(c)[0]["mean"]["interval"] is None
    said = verdict(c, ["a"])
    assert said.startswith("a: mean accuracy 0.85, rank 1 of 2. One seed: no verdict.")
    assert "better" not in said


def test_tasks_with_several_seeds_have_a_verdict_where_others_have_one():
    c = compared({"a": {"x": [0.90, 0.91, 0.92], "y": [0.8]}, "b": {"x": [0.10, 0.12, 0.11], "y": [0.2]}})
    assert c.accuracy("a").interval is None
    assert "better than b on x" in verdict(c, ["a"])
    assert "One seed on y: no verdict overall." in verdict(c, ["a"])


@pytest.mark.parametrize("seeds", [2, 3, 5])
@pytest.mark.parametrize(("spread", "sequences"), [(0.1, 1000), (0.02, 100), (0.0, 1000)])
def test_intervals_cover_the_truth_as_often_as_they_say(seeds, spread, sequences):
    """Whatever the seeds' spread comes from: their own, or the test items'. A bootstrap covers 54 % with two."""
    stream = np.random.default_rng(0)
    inside = 0
    for _ in range(600):
        true = np.clip(stream.normal(0.6, spread, size=seeds), 0, 1)
        tested = stream.binomial(sequences, true) / sequences
        found = compared({"a": {"x": tested.tolist()}}, sequences=sequences).accuracy("a")
        inside += found.low <= 0.6 <= found.high
    assert 0.92 <= inside / 600 <= 0.98


@pytest.mark.parametrize("seeds", [2, 3, 5])
def test_equal_architectures_are_called_different_in_one_verdict_of_twenty(seeds):
    """Five of them on two tasks: 4 comparisons overall and 8 by task; and the best of them by the results."""
    stream = np.random.default_rng(1)
    alarms, chosen = 0, 0
    for _ in range(300):
        table = {name: {task: stream.normal(0.6, 0.05, seeds).tolist() for task in TASKS} for name in "abcde"}
        c = compared(table, sequences=1000)
        alarms += _differs(c.signs("a"))
        chosen += _differs(c.signs(min(c.names, key=c.rank), chosen=True))
    assert alarms / 300 <= 0.07
    assert chosen / 300 <= 0.07


def _differs(signs):
    return any(signs.overall.values()) or any(any(found.values()) for found in signs.by_task.values())


def test_a_ceiling_is_not_known_exactly():
    """Two seeds without an error in 512 sequences: the mean may well be below 1."""
    found = compared({"a": {"x": [1.0, 1.0]}, "b": {"x": [1.0, 1.0]}}, sequences=256)
    low, high = found.accuracy("a").interval
    assert high == 1
    assert 0.9 < low < 0.993, "no less than what 512 items leave open (Clopper and Pearson: 0.993)"
    low, high = found.difference("a", "b").interval
    assert low < 0 < high


def test_seeds_that_only_some_tasks_have_count_in_the_mean():
    c = compared({"a": {"x": [0.5, 0.7, 0.9], "y": [0.2, 0.4]}})
    assert c.accuracy("a").value == pytest.approx((0.7 + 0.3) / 2)
    assert c.deviation("a") == pytest.approx(np.std([0.35, 0.55], ddof=1))
    assert c.deviation("a", "x") == pytest.approx(0.2)
    assert c.noise("x") == pytest.approx(0.2)


def test_ranks_by_loss():
    found = [
        Score("a", "x", "1", 0, 0.9, 2.0, 10), Score("b", "x", "1", 0, 0.8, 1.0, 10),
        Score("c", "x", "1", 0, 0.7, None, 10),
    ]  # fmt: skip
    c = Comparison(["a", "b", "c"], ["x"], found)
    assert [c.rank(name) for name in "abc"] == [1, 2, 3]
    assert [c.loss_rank(name) for name in "abc"] == [2, 1, 3]


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
        "mine": {"recall": [0.951, 0.962, 0.949], "compression": [0.500, 0.521, 0.512]},
        "weak": {"recall": [0.300, 0.311, 0.299], "compression": [0.499, 0.519, 0.510]},
        "twin": {"recall": [0.955, 0.949, 0.951], "compression": [0.511, 0.508, 0.517]},
        "other": {"recall": [0.600, 0.612, 0.600], "compression": [0.831, 0.880, 0.860]},
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
    assert "more seeds may show one" in verdict(c, ["a"])
    assert verdict(compared({"a": {"x": [0.5, 0.6]}}), ["a"]).endswith("rank 1 of 1.")


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
    assert [row.paper for row in rows] == [0.081, 0.023, 0.017]
    assert rows[1].difference == pytest.approx(heads)
    assert rows[2].difference == pytest.approx(experts)
    assert rows[0].difference == pytest.approx(striped, abs=0.01)
    assert all(row.interval[0] <= row.difference <= row.interval[1] for row in rows)


def test_better_on_every_task_is_better_overall():
    """It follows, also where the test of the mean alone is weaker, as here: only two seeds have both tasks."""
    noise = [-0.008, 0.004, 0.009, -0.005, 0.006, -0.006]
    near = {"a": [0.8, 0.8, 0.8, 0.8, 0.82, 0.78], "b": [0.5 + n for n in noise]}
    late = {"a": [0.82, 0.78, 0.8, 0.8, 0.8, 0.8], "b": [0.5 + n for n in noise]}
    rows = [
        Score(name, task, "", seed + first, value, None, 256)
        for task, values, first in (("x", near, 0), ("y", late, 4))
        for name, own in values.items()
        for seed, value in enumerate(own)
    ]
    c = Comparison(["a", "b"], ["x", "y"], rows)
    assert c.shared_seeds == [4, 5]
    assert c.difference("a", "b").p > 0.025  # its own half of 5 %
    assert c.signs("a").overall == {"b": 1}
    assert c.signs("b").overall == {"a": -1}
    said = verdict(c, ["a"])
    assert "better than b overall" in said
    assert "not distinguishable" not in said


def test_a_task_that_differs_and_a_mean_that_does_not_are_explained():
    wild = [0.1, 0.9, 0.5, 0.2, 0.8]
    c = compared({"a": {"x": [0.90, 0.91, 0.92, 0.91, 0.90], "y": wild},
                  "b": {"x": [0.50, 0.52, 0.51, 0.50, 0.51], "y": wild[::-1]}})  # fmt: skip
    said = verdict(c, ["a"])
    assert "not distinguishable from b overall; better than b on x" in said
    assert "the other tasks hide what one task shows; more seeds may show one." in said


def test_the_dashboard_shows_the_verdicts_intervals():
    """`/kind/probe` showed Wilson's interval where the verdict shows Student's."""
    for accuracies in ([0.9, 0.95, 1.0], [1.0, 1.0], [0.4, 0.5, 0.7]):
        c = compared({"a": {"x": accuracies}})
        shown = score_of([{"accuracy": value} for value in accuracies], 256 * len(accuracies))
        assert shown is not None
        assert shown.interval == pytest.approx(c.accuracy("a", "x").interval, abs=1e-12)
