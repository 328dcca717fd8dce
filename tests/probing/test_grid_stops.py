"""Stopping runs of the grid that are behind (benchmarks/grid_stops.py), and which run then counts."""

from __future__ import annotations

import math

import pytest
from benchmark_modules import load_benchmark

from plait.probing.trial import _selected
from plait.training.ensemble_plan import Replica, ReplicaRecord

stops = load_benchmark("grid_stops")


def curves(chosen: int, *accuracies: tuple[float, ...]):
    """A setting of 100 steps with evaluations at equal distances."""
    every = 100 // len(accuracies)
    return stops.Curves("made up", 100, {every * (i + 1): row for i, row in enumerate(accuracies)}, chosen)


def test_a_run_behind_stops_at_the_first_evaluation_where_it_is():
    setting = curves(0, (0.3, 0.9), (0.5, 0.7), (0.7, 0.4), (0.8, 0.1), (0.9, 0.0))
    assert setting.stops(0.2, 0.5) == {0: 20}
    assert setting.stops(0.4, 0.25) == {1: 60}
    assert setting.saved({1: 60}) == 40
    assert setting.lost({1: 60}) == 0
    assert setting.lost({0: 20}) == pytest.approx(0.9)
    assert setting.stops(0.9, 0.1) == {}, "at the last evaluation nothing is left to stop"


def test_a_record_is_cut_where_the_rule_would_have_stopped_a_run():
    def replica(*accuracies: float):
        rows = [[20 * (i + 1), accuracy, 1.0] for i, accuracy in enumerate(accuracies)]
        losses = [[step, 1.0] for step, _, _ in rows]
        return {"steps": 100, "stopped": "done", "losses": losses, "validation": rows, "test": [0.5, 1.0]}

    task = {"task": "copy", "length": 8, "vocab": 4, "train_size": 8}
    replicas = [replica(0.2, 0.4, 0.9, 0.9, 0.9), replica(0.2, 0.3, 0.4, 0.5, 0.6)]
    record = {
        "key": "old",
        "config": {"protocol": 2, "task": task, "training": {"steps": 100}},
        "result": {"seeds": [{"chosen": 0}], "replicas": replicas},
    }
    cut = stops.as_stopped(record)
    assert cut["config"]["training"]["behind"] == list(stops.BEHIND)
    assert cut["key"] != "old"
    winner, loser = cut["result"]["replicas"]
    assert winner == record["result"]["replicas"][0]
    assert (loser["steps"], loser["stopped"], loser["test"], len(loser["validation"])) == (60, "behind", None, 3)
    record["result"]["seeds"][0]["chosen"] = 1
    with pytest.raises(SystemExit, match="would have been stopped"):
        stops.as_stopped(record)


def test_stricter_rules_are_replayed_on_settings_that_the_protocol_cut():
    """A run that was stopped is behind from there on; rules that would have stopped it later are not judged by it."""

    def record(task: str, *runs: tuple[str, tuple[float, ...]]):
        rows = [[[20 * (i + 1), x, 1.0] for i, x in enumerate(accuracies)] for _, accuracies in runs]
        return {
            "config": {"task": {"task": task, "length": 8, "vocab": 4, "train_size": 8}, "training": {"steps": 100}},
            "result": {
                "seeds": [{"chosen": 0}],
                "replicas": [{"stopped": stopped, "validation": x} for (stopped, _), x in zip(runs, rows, strict=True)],
            },
        }

    late = stops.Curves.of(record("late", ("done", (0.1, 0.4, 0.9, 0.9, 0.9)), ("behind", (0.5, 0.5, 0.4))))
    whole = stops.Curves.of(record("whole", ("done", (0.5, 0.6, 0.7, 0.8, 0.9)), ("done", (0.5, 0.6, 0.6, 0.7, 0.8))))
    assert (late.complete, whole.complete) == (False, True)
    assert late.stops(0.2, 0.3) == {0: 20}  # the winner
    assert late.lost({0: 20}) == math.inf  # all that is left had stopped
    assert late.stops(0.4, 0.2) == {1: 60}
    rows = stops.page([late, whole]).splitlines()
    assert any(row.startswith("| 0.2 | 0.3 | 0 of 1 ") for row in rows)  # a wider margin: by the complete one alone
    assert any(row.startswith("| **0.4** | **0.2** | 0 of 2 ") for row in rows)


def test_patience_is_replayed():
    setting = curves(1, (0.1, 0.2), (0.9, 0.3), (0.5, 0.4), (0.4, 0.5), (0.3, 0.6))
    assert setting.with_patience(200) == (0.6, 200)
    assert setting.with_patience(80) == (0.6, 180)  # the first run stops at 80, the second goes on to 100
    assert setting.with_patience(40) == (0.6, 160)
    falling = curves(0, (0.1, 0.2), (0.9, 0.3), (0.5, 0.2), (0.4, 0.1), (0.3, 0.1))
    assert falling.with_patience(40) == (0.5, 120)  # 0.3 if both went on
    overlearnt = next(row for row in stops.patience_table([falling]) if row.startswith("| 40 |"))
    assert overlearnt == "| 40 | 60 % | +0.200 | +0.200 | +0.200 | 0 of 1 |"


def test_what_would_have_stopped_before_it_solved_its_setting_is_not_judged():
    solved = stops.Curves("made up", 200, {20: (0.1, 0.5), 40: (0.2, 0.4), 60: (0.3, 0.999)}, 1)
    assert solved.with_patience(40) == (0.999, 120)
    assert solved.with_patience(20) is None


def test_a_run_that_was_behind_does_not_count_even_if_the_best_one_fell_below_it():
    behind = ReplicaRecord(Replica(1e-3, 0.0, 0), 40, "behind", [], [(40, 0.6, 1.0)], (0.61, 1.0))
    done = ReplicaRecord(Replica(1e-3, 0.0, 1), 100, "done", [], [(40, 0.9, 1.0), (100, 0.5, 1.0)], (0.51, 2.0))
    assert _selected([behind, done], [0, 1]) == (0.51, 2.0, 1)
    diverged = ReplicaRecord(
        Replica(3e-3, 0.0, 0), 60, "diverged", [], [(40, 0.9, 0.5), (60, 0.1, math.nan)], (0.1, 9.0)
    )
    assert _selected([behind, diverged], [0, 1]) == (0.61, 1.0, 0)  # the one ahead diverged later
    assert _selected([diverged], [0])[2] is None
    assert math.isclose(_selected([done], [0])[0], 0.51)
