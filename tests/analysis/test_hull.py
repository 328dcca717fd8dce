"""The lower hull against its definition."""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.analysis.fronts import lower_hull
from plait.core.errors import UserError

WHOLE = st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), min_size=1, max_size=14)


def is_corner(point: tuple[int, int], others: list[tuple[int, int]]) -> bool:
    """No other point is at least as good, and no mixture of two others is: whole numbers, so all of it is exact."""
    x, y = point
    if any(a <= x and b <= y for a, b in others):
        return False
    for (a, b), (c, d) in permutations(others, 2):
        if a < x < c and b * (c - x) + d * (x - a) <= y * (c - a):
            return False
    return True


@settings(deadline=None)
@given(WHOLE)
def test_corners_are_what_no_mixture_of_two_beats(points: list[tuple[int, int]]) -> None:
    found = lower_hull(*zip(*points, strict=True))
    distinct = sorted(set(points))
    expected = [point for point in distinct if is_corner(point, [other for other in distinct if other != point])]
    assert [points[place] for place in found] == expected
    assert [points.index(points[place]) for place in found] == found.tolist(), "the first of equal points"


def test_the_rising_part_is_left_out() -> None:
    cost, value = [1, 2, 3, 4, 5], [10, 4, 3.9, 1, 2]
    assert lower_hull(cost, value).tolist() == [0, 1, 3]


def test_a_point_on_an_edge_is_no_corner() -> None:
    assert lower_hull([0, 1, 2, 3], [4, 2, 0, 0]).tolist() == [0, 2]


def test_missing_values_are_refused() -> None:
    with pytest.raises(UserError, match="no value"):
        lower_hull([1.0, np.nan], [1.0, 2.0])
