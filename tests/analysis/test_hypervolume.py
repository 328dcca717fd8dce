"""Volumes against inclusion and exclusion, against a known shape, and against Monte Carlo integration."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plait.analysis.fronts import hypervolume
from plait.analysis.pareto import pareto_front
from plait.core.errors import UserError

POINTS = st.tuples(st.integers(0, 7), st.integers(1, 5)).flatmap(
    lambda shape: arrays(float, shape, elements=st.integers(0, 6))
)


def by_inclusion_and_exclusion(points: np.ndarray, corner: float) -> float:
    boxes = np.maximum(corner - points, 0.0)
    total = 0.0
    for size in range(1, len(boxes) + 1):
        for some in combinations(boxes, size):
            total -= (-1) ** size * np.prod(np.min(some, axis=0))
    return total


@settings(max_examples=150, deadline=None)
@given(POINTS)
def test_inclusion_and_exclusion(points: np.ndarray) -> None:
    assert hypervolume(points, [5] * points.shape[1]) == pytest.approx(by_inclusion_and_exclusion(points, 5))


@settings(deadline=None)
@given(POINTS)
def test_the_order_of_rows_and_columns_does_not_matter(points: np.ndarray) -> None:
    stream = np.random.default_rng(len(points))
    corner = np.arange(4, 4 + points.shape[1])
    rows, columns = stream.permutation(len(points)), stream.permutation(points.shape[1])
    shuffled = hypervolume(points[rows][:, columns], corner[columns])
    assert shuffled == pytest.approx(hypervolume(points, corner))


@pytest.mark.parametrize("objectives", [2, 3, 4, 5])
def test_darts(objectives: int) -> None:
    stream = np.random.default_rng(objectives)
    points = stream.random((40, objectives))
    darts = stream.random((20_000, objectives))
    hit = np.zeros(len(darts), dtype=bool)
    for point in points[pareto_front(points)]:
        hit |= (darts >= point).all(axis=1)
    assert hypervolume(points, np.ones(objectives)) == pytest.approx(hit.mean(), abs=4 * 0.5 / np.sqrt(len(darts)))


def test_a_ball() -> None:
    """Thousands of points on the eighth of a sphere leave little of it uncovered."""
    points = np.abs(np.random.default_rng(0).normal(size=(4000, 3)))
    points /= np.linalg.norm(points, axis=1, keepdims=True)
    volume = hypervolume(points, [0, 0, 0], maximise=[0, 1, 2])
    assert 0.97 * np.pi / 6 < volume < np.pi / 6


def test_maximised_objectives_and_points_beyond_the_reference() -> None:
    # Accuracy up, cost down: 0.5 × 8 from the first, and 0.3 × 3 more from the second; the third is too dear.
    assert hypervolume([[0.5, 2], [0.8, 7], [0.9, 11]], [0, 10], maximise=[0]) == pytest.approx(4.9)


def test_nothing_has_no_volume() -> None:
    assert hypervolume(np.empty((0, 3)), [1, 1, 1]) == 0


def test_mistakes() -> None:
    with pytest.raises(UserError, match="2 values for 3"):
        hypervolume([[1, 2, 3]], [1, 2])
    with pytest.raises(UserError, match="infinite"):
        hypervolume([[-np.inf, 0]], [1, 1])
