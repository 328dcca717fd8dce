"""Averages over tasks, and accuracy against latency."""

from __future__ import annotations

from typing import Any

import pytest

from plait.analysis.accuracy import SHORT_CONTEXT, against_latency, average, counted
from plait.core.errors import UserError


def test_the_average_is_over_ten_tasks_alike() -> None:
    accuracies = {task: float(place) for place, task in enumerate(SHORT_CONTEXT)}
    assert average({**accuracies, "another": 1e9}) == pytest.approx(4.5)
    with pytest.raises(UserError, match="missing: boolq"):
        average({task: value for task, value in accuracies.items() if task != "boolq"})


def test_length_normalised_accuracy_counts_where_the_paper_has_it() -> None:
    rows = [
        {"task": task, "metric": metric, "value": value}
        for task in ("hellaswag", "arc_easy", "arc_challenge", "mine")
        for metric, value in (("acc", 0.25), ("acc_norm", 0.5), ("perplexity", 9.0))
    ]
    assert counted(rows) == {"hellaswag": 50.0, "arc_easy": 25.0, "arc_challenge": 50.0, "mine": 25.0}


def evaluated(run: str, spec: str, value: float, started: str = "2026-01-01") -> dict[str, Any]:
    table = [{"task": "piqa", "metric": "acc", "value": value}]
    return {"config": {"spec": spec}, "result": {"run": run, "table": table}, "about": {"started": started}}


def measured(spec: str, seconds: float, seq: int = 2048) -> dict[str, Any]:
    return {"config": {"spec": spec, "seq": seq}, "result": {"latency": {"seconds": seconds}}}


def test_models_are_joined_by_spec_and_the_newest_evaluation_counts() -> None:
    evaluations = [
        evaluated("slow", "a", 0.7, "2026-01-02"),
        evaluated("slow", "a", 0.1),
        evaluated("fast", "b", 0.6),
        evaluated("unmeasured", "c", 0.9),
    ]
    found = against_latency(evaluations, [measured("a", 0.02), measured("b", 0.01), measured("d", 0.5)])
    assert [(one.model, one.latency_ms, one.accuracy) for one in found] == [
        ("fast", 10.0, {"piqa": 60.0}),
        ("slow", 20.0, {"piqa": 70.0}),
    ]
    assert found[0].average is None


def test_latencies_of_two_settings_are_not_mixed() -> None:
    with pytest.raises(UserError, match="2 settings; choose one, such as --where seq=2048"):
        against_latency([evaluated("a", "a", 0.5)], [measured("a", 0.02), measured("b", 0.01, seq=64)])
