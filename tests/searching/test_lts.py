"""The published loop, number by number."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plait.algorithms.evolution import LtsSearch
from plait.algorithms.objectives import Predicted, exact
from plait.space.space import Space
from plait.space.table import load_space


def test_2500_candidates_in_31_steps(stopwatch: Any) -> None:
    objectives = [*exact(["decoder_params"]), Predicted("latency", stopwatch)]
    sizes: list[int] = []
    search = LtsSearch(load_space("lts-gpt2"), objectives)
    front = search.run(on_step=lambda search: sizes.append(search.evaluated))
    assert sizes == [100 + 80 * i for i in range(31)]
    assert (front.evaluated, len(stopwatch.asked)) == (2500, 2500)


def test_rare_parents_are_preferred(small: Space) -> None:
    search = LtsSearch(small, exact(["decoder_params"]), parents=1)
    drawn = np.zeros(3)
    for seed in range(3000):
        search.times_parent_N = np.array([0, 1, 3])
        drawn[search._choose_parents(np.random.default_rng(seed))] += 1
    assert drawn / 3000 == pytest.approx([4 / 7, 2 / 7, 1 / 7], abs=0.03)  # 1 : 1/2 : 1/4


def test_parents_are_counted_and_leave_with_their_counts(small: Space) -> None:
    search = LtsSearch(small, exact(["decoder_params", "flops"]), iterations=5, parents=7)
    search.run()
    assert len(search.times_parent_N) == len(search.archive)
    assert 0 < search.times_parent_N.sum() <= 5 * 7


def test_memory_is_predicted_like_latency(small: Space, stopwatch: Any) -> None:
    front = LtsSearch(
        small,
        [*exact(["decoder_params"]), Predicted("latency", stopwatch), Predicted("memory", stopwatch)],
        iterations=2,
    ).run()
    assert {"latency", "latency_high", "memory", "memory_high"} <= set(front.rows[0])


def test_counts_stay_with_their_candidates(small: Space, monkeypatch: pytest.MonkeyPatch) -> None:
    search = LtsSearch(small, exact(["decoder_params", "flops"]), iterations=1)
    search.step(np.random.default_rng(0))
    search.iteration = 1
    search.times_parent_N = counts = np.arange(10, 10 + len(search.archive))
    monkeypatch.setattr(search, "_choose_parents", lambda rng: np.arange(3))
    monkeypatch.setattr(search, "collect", lambda propose, want: search.evaluator.nothing())
    search.step(np.random.default_rng(1))
    assert search.times_parent_N.tolist() == counts.tolist()
