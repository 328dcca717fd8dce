"""NSGA-III's directions and niches, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from plait.algorithms.nsga import directions, fill_by_niches, nearest_direction, normalised


@pytest.mark.parametrize(
    ("objectives", "at_most", "number"), [(2, 10, 10), (3, 91, 91), (3, 92, 91), (4, 3, 4), (1, 5, 1)]
)
def test_directions_are_spread_over_the_simplex(objectives: int, at_most: int, number: int) -> None:
    found = directions(objectives, at_most)
    assert found.shape == (number, objectives)
    assert found.sum(axis=1) == pytest.approx(np.ones(number))
    assert (found >= 0).all()
    assert len(np.unique(found.round(9), axis=0)) == number
    assert found.mean(axis=0) == pytest.approx(np.full(objectives, 1 / objectives))


def test_axes_are_measured_from_the_ideal_to_the_plane_of_extremes() -> None:
    costs = np.array([[10.0, 300.0], [20.0, 100.0], [12.0, 200.0]])
    # Ideal (10, 100); extremes (0, 200) and (10, 0): intercepts 10 and 200.
    assert normalised(costs) == pytest.approx(np.array([[0, 1], [1, 0], [0.2, 0.5]]))


def test_extremes_that_span_no_plane_fall_back_to_the_extent() -> None:
    assert normalised(np.array([[1.0, 5.0], [1.0, 5.0]])) == pytest.approx(np.zeros((2, 2)))
    assert normalised(np.array([[0.0, 0.0], [4.0, 8.0]])) == pytest.approx(np.array([[0, 0], [1, 1]]))


def test_the_nearest_line() -> None:
    niche, off = nearest_direction(np.array([[2.0, 0.0], [1.0, 3.0]]), np.array([[1.0, 0.0], [0.0, 1.0]]))
    assert niche.tolist() == [0, 1]
    assert off == pytest.approx([0.0, 1.0])


def test_the_emptiest_direction_is_served_first() -> None:
    costs = np.array([[0.0, 1.0], [0.05, 0.95], [0.5, 0.5], [0.6, 0.45], [1.0, 0.0], [0.95, 0.06]])
    taken, last = np.array([0, 1]), np.array([2, 3, 4, 5])
    three = np.array([[0.0, 1.0], [0.5, 0.5], [1.0, 0.0]])
    for seed in range(8):
        chosen = fill_by_niches(np.random.default_rng(seed), costs, taken, last, 2, three)
        assert sorted(chosen.tolist()) == [2, 4]  # nothing lies there yet, and these are nearest to the lines
    assert sorted(fill_by_niches(np.random.default_rng(0), costs, taken, last, 4, three).tolist()) == [2, 3, 4, 5]
