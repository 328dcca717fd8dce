"""Rules that stop runs of the grid early, replayed (benchmarks/grid_stops.py), and which run then counts."""

from __future__ import annotations

import json
import math

from benchmark_modules import load_benchmark

from plait.probing.protocol import HALVING, full
from plait.probing.trial import _selected
from plait.training.ensemble_plan import Replica, ReplicaRecord

stops = load_benchmark("grid_stops")


def curves(*runs: tuple[float, ...], planned: int = 100):
    """A setting whose runs were evaluated after every tenth of 100 steps."""
    rows = tuple(tuple((10 * (i + 1), x, 1.0) for i, x in enumerate(run)) for run in runs)
    return stops.Curves("d=32 vocab=8 | attn", "made up", planned, rows, tuple(run[-1] / 2 for run in runs))


def to_end(*accuracies: float) -> tuple[float, ...]:
    """Ten evaluations, the last given ones repeated."""
    return (*accuracies, *[accuracies[-1]] * (10 - len(accuracies)))


def test_halving_is_replayed():
    setting = curves(to_end(0.3, 0.3, 0.3, 0.9), to_end(0.5, 0.5, 0.5, 0.6), to_end(0.4, 0.4, 0.4, 0.5))
    assert setting.replayed() == (0.9, 0.45, 300)
    assert setting.replayed(((0.3, 2),)) == (0.6, 0.3, 230)  # the winner was the last one then
    assert setting.replayed(((0.3, 2), (0.6, 1))) == (0.6, 0.3, 190)
    assert setting.replayed(((0.4, 1),)) == (0.9, 0.45, 180)
    assert setting.replayed(((1.0, 1),)) == (0.9, 0.45, 300), "at the last evaluation nothing is left to stop"


def test_patience_is_replayed_in_epochs():
    setting = curves(to_end(0.1, 0.9, 0.5, 0.4, 0.3), to_end(0.2, 0.3, 0.4, 0.5, 0.6))
    assert setting.replayed(patience=200) == (0.6, 0.3, 200)
    assert setting.replayed(patience=40) == (0.6, None, 40 + 70), "not scored on the test split there"
    assert setting.replayed(patience=80) == (0.6, None, 60 + 90)


def test_what_had_stopped_when_it_was_trained_stops_in_every_replay():
    setting = curves(to_end(0.1, 0.4, 0.9), (0.5, 0.5, 0.4))
    assert setting.replayed() == (0.9, 0.45, 130)
    assert setting.replayed(((0.2, 1),)) == (0.4, None, 50), "nothing else is left"


def test_a_setting_whose_solver_a_rule_stops_is_left_out():
    """The others, which it ended, would have gone on."""
    setting = curves((0.1, 0.2, 0.999), (0.5, 0.4, 0.3), planned=200)
    assert setting.replayed() == (0.999, 0.4995, 60)
    assert setting.replayed(((0.1, 1),))[:2] == (None, None)
    assert setting.replayed(((0.15, 1),)) == (0.999, 0.4995, 60), "it is solved before that"
    crossing = curves(to_end(0.3, 0.2, 0.6), to_end(0.5, 0.4))
    row = stops.table_row("rule", [setting, crossing], ((0.1, 1),))
    assert row == "| rule | 55 % | -0.1000 | -0.100 | -0.100 | 1 and 0 of 1 |", "on the test split"


def test_the_page_has_the_rule_of_the_protocol_and_what_was_measured(tmp_path):
    def record(task: str, score: float, *runs: tuple[float, ...]) -> str:
        replicas = [{"validation": rows, "test": [0.5, 1.0]} for rows in curves(*runs).runs]
        settings = {"task": task, "variant": "paper", "length": 8}
        config = {"spec": "d=32 vocab=8 | gla", "task": settings, "training": {"steps": 100}}
        return json.dumps({"config": config, "result": {"accuracy": score, "replicas": replicas}})

    whole, patient = tmp_path / "whole.jsonl", tmp_path / "patient.jsonl"
    better, worse = to_end(0.2, 0.4, 0.6, 0.8), to_end(0.1, 0.2, 0.3)
    whole.write_text(record("copy", 0.81, better, worse) + "\n" + record("copy", 0.5, worse, worse) + "\n")
    patient.write_text(record("copy", 0.71, better[:6], worse[:5]) + "\n" + record("sort", 0.2, worse) + "\n")
    settings = stops.read([whole])
    assert [curves.score for curves in settings] == [0.81], "of equal settings the first counts"
    page = stops.page(settings, stops.read([patient]))
    assert f"| **{stops.schedule_text(HALVING).split('**')[1]}** (the protocol's) | 90 % | +0.0000 |" in page
    assert "| copy, length 8 | 0.810 | 0.710 | -0.100 |" in page
    assert "1 settings trained with" in page
    assert "patience 20" not in stops.page(settings)
    assert "on 1 settings of the quick protocol, on a CPU: gla; six" in stops.page(settings, small=settings)


def test_the_protocol_counts_the_steps_of_the_runs_that_go_on():
    for setting in full().settings:
        training = setting.training
        every_run, halved = 6 * training.steps, training.replica_steps
        assert (0.5 * 6 + 0.25 * 3 + 0.25) / 6 <= halved / every_run < 0.7, setting
    assert full().steps == sum(setting.training.replica_steps for setting in full().settings)


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
