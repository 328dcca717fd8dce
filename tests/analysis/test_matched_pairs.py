"""Matched pairs: planted ones, and the definition."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plait.analysis.comparisons import find_matched_pairs
from plait.core.errors import UserError


def test_the_two_pairs_of_figure_15() -> None:
    """Equal memory and parameters with twice the latency; equal latency and parameters with 30 MB between them."""
    params = np.array([10.0, 10.05, 20.0, 20.1, 30.0])
    latency = np.array([50.0, 100.0, 70.0, 70.5, 90.0])
    memory = np.array([200.0, 201.0, 310.0, 340.0, 400.0])
    (red,) = find_matched_pairs(np.column_stack([params, memory]), latency)
    assert (red.low, red.high, red.ratio) == (0, 1, 2.0)
    (green,) = find_matched_pairs(np.column_stack([params, latency]), memory, min_difference=30)
    assert (green.low, green.high, green.difference) == (2, 3, 30.0)


POINTS = arrays(float, st.tuples(st.integers(0, 16), st.just(3)), elements=st.integers(1, 12))


@settings(deadline=None)
@given(POINTS, st.sampled_from([0.0, 0.1, 0.5]), st.sampled_from([1.0, 1.5]), st.integers(1, 6))
def test_every_pair_that_fits_and_the_farthest_first(
    points: np.ndarray, tolerance: float, ratio: float, at_most: int
) -> None:
    equal, far = points[:, :2], points[:, 2]
    fitting = {}
    for i in range(len(points)):
        for j in range(len(points)):
            alike = (np.maximum(equal[i], equal[j]) <= np.minimum(equal[i], equal[j]) * (1 + tolerance)).all()
            if far[i] < far[j] and alike and far[j] / far[i] >= ratio:
                fitting[i, j] = far[j] / far[i]
    everything = find_matched_pairs(equal, far, tolerance, ratio, at_most=1000)
    assert {(pair.low, pair.high): pair.ratio for pair in everything} == fitting
    few = find_matched_pairs(equal, far, tolerance, ratio, at_most=at_most)
    assert [pair.ratio for pair in few] == sorted(fitting.values(), reverse=True)[:at_most]


def test_a_full_list_makes_room_for_farther_pairs() -> None:
    far = np.arange(1.0, 21.0)
    found = find_matched_pairs(np.ones((20, 1)), far[np.random.default_rng(0).permutation(20)], at_most=3)
    assert [pair.ratio for pair in found] == [20, 19, 18]


def test_mistakes() -> None:
    with pytest.raises(UserError, match="positive"):
        find_matched_pairs([[1.0], [0.0]], [1.0, 2.0])
    with pytest.raises(UserError, match="row per model"):
        find_matched_pairs([1.0, 2.0], [1.0, 2.0])  # type: ignore[list-item]
    with pytest.raises(UserError, match="tolerance"):
        find_matched_pairs([[1.0]], [1.0], tolerance=-1)
