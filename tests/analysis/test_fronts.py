"""d_avg and dominated models, by hand and on LiteTransformerSearch's own fronts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plait.analysis.fronts import Dominated, dominated_models, front_distance, proxy_front_distance
from plait.analysis.pareto import pareto_front
from plait.core.errors import UserError


def test_d_avg_by_hand() -> None:
    latency = [10.0, 20.0, 30.0, 11.0, 26.0]
    ppl = [50.0, 40.0, 30.0, 55.0, 36.0]
    distance = front_distance(latency, ppl, claimed=[3, 4], true_front=[0, 1, 2])
    assert distance.nearest.tolist() == [0, 2]
    assert distance.gaps.tolist() == pytest.approx([0.1, 0.2])
    assert distance.mean == pytest.approx(0.15)


def test_of_two_equally_near_the_cheaper_counts_whatever_the_order() -> None:
    latency, ppl = [30.0, 10.0, 10.0, 20.0], [20.0, 41.0, 40.0, 30.0]
    for order in ([0, 1, 2], [2, 1, 0]):
        assert front_distance(latency, ppl, [3], order).nearest.tolist() == [2]


def test_a_perfect_proxy_is_at_no_distance() -> None:
    stream = np.random.default_rng(0)
    latency, ppl = stream.random((2, 200)) + 1
    assert proxy_front_distance(latency, -ppl, ppl, hull=False).mean == 0


def test_the_hull_is_the_ground_truth_unless_the_front_is_asked_for() -> None:
    latency, ppl = [1.0, 2.0, 3.0], [10.0, 9.0, 4.0]  # the second is on the front and above the hull
    proxy = [1.0, 2.0, 3.0]
    assert proxy_front_distance(latency, proxy, ppl, hull=False).mean == 0
    by_hull = proxy_front_distance(latency, proxy, ppl)
    assert by_hull.nearest.tolist() == [0, 0, 2]
    assert by_hull.mean == pytest.approx(0.1 / 3)


def test_an_empty_front_is_refused() -> None:
    with pytest.raises(UserError, match="empty"):
        front_distance([1.0], [1.0], [], [0])


def test_dominated_by_hand() -> None:
    points = [[1, 1], [2, 2], [1, 3], [1, 1], [0, 9]]
    assert dominated_models(points) == [Dominated(1, 0), Dominated(2, 0)]
    assert dominated_models(points, strict=True) == [Dominated(1, 0)]
    assert dominated_models(points, maximise=[0]) == [Dominated(2, 0), Dominated(4, 0)]


@settings(deadline=None)
@given(arrays(float, st.tuples(st.integers(1, 25), st.integers(1, 4)), elements=st.integers(0, 4)))
def test_what_is_not_on_the_front_is_dominated_by_some_point_of_it(points: np.ndarray) -> None:
    on_front = pareto_front(points)
    found = dominated_models(points)
    assert [each.model for each in found] == np.flatnonzero(~on_front).tolist()
    assert all(on_front[each.by] and (points[each.by] <= points[each.model]).all() for each in found)
    strict = {each.model for each in dominated_models(points, strict=True)}
    assert strict == {i for i, p in enumerate(points) if any((q < p).all() for q in points)}


@pytest.mark.parametrize(
    ("name", "models", "expected"),
    [
        ("pareto_TransXL_lm1b_arm", 39, ["M17", "M20", "M25", "M27", "M34", "M36"]),
        ("pareto_TransXL_lm1b_corei7", 35, ["M10", "M16", "M20", "M33"]),
        ("pareto_GPT2_lm1b_arm", 45, []),
        ("pareto_GPT2_lm1b_corei7", 38, []),
    ],
)
def test_the_papers_fronts(seed_data: Callable[[str], Path], name: str, models: int, expected: list[str]) -> None:
    """Transformer-XL counted as the paper's last version does: its search had counted otherwise."""
    rows = json.loads(seed_data("lts_trained_pareto.json").read_text())[name]
    points = [[row["decoder_params"], row["latency_ms"], row["memory_mb"]] for row in rows]
    assert len(rows) == models
    assert [rows[each.model]["name"] for each in dominated_models(points, maximise=[0], strict=True)] == expected
