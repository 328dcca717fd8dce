"""Fronts, ranks and crowding against the definitions, read literally."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from plait.analysis import pareto
from plait.analysis.pareto import crowding_distance, front_ranks, pareto_front
from plait.core.errors import UserError

# Few values make ties and copies; the infinities are values like any other.
VALUES = st.sampled_from([-np.inf, -2.0, -1.0, -0.0, 0.0, 1.0, 2.0, 3.0, np.inf])
POINTS = st.tuples(st.integers(0, 45), st.integers(1, 6)).flatmap(lambda shape: arrays(float, shape, elements=VALUES))


def dominates(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a <= b).all() and (a < b).any())


def front_by_definition(points: np.ndarray) -> np.ndarray:
    return np.array([not any(dominates(q, p) for q in points) for p in points], dtype=bool)


@settings(deadline=None)
@given(POINTS, st.data())
def test_front_is_what_nothing_dominates(points: np.ndarray, data: st.DataObject) -> None:
    maximise = data.draw(st.sets(st.integers(0, points.shape[1] - 1)))
    signs = np.array([-1.0 if column in maximise else 1.0 for column in range(points.shape[1])])
    assert (pareto_front(points, maximise) == front_by_definition(points * signs)).all()


@settings(deadline=None)
@given(POINTS)
def test_ranks_peel_front_after_front(points: np.ndarray) -> None:
    ranks = front_ranks(points)
    left, level = np.arange(len(points)), 0
    while len(left):
        on_front = front_by_definition(points[left])
        assert (ranks[left[on_front]] == level).all()
        left, level = left[~on_front], level + 1


@pytest.mark.parametrize("objectives", [2, 3, 4, 5])
@pytest.mark.parametrize("shape", ["uniform", "all on the front", "grid"])
def test_many_points(objectives: int, shape: str) -> None:
    """Enough of them for the clearing and for several blocks."""
    stream = np.random.default_rng(objectives)
    points = stream.random((1500, objectives))
    if shape == "all on the front":
        points /= points.sum(axis=1, keepdims=True)
    elif shape == "grid":
        points = np.floor(points * 6)
    below = (points[:, None] <= points).all(axis=2) & (points[:, None] < points).any(axis=2)
    assert (pareto_front(points) == ~below.any(axis=0)).all()


def test_blocks_do_not_depend_on_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    points = np.random.default_rng(0).random((400, 4))
    whole = pareto_front(points)
    monkeypatch.setattr(pareto, "CELLS", 64)
    monkeypatch.setattr(pareto, "BLOCK", 7)
    assert (pareto_front(points) == whole).all()


@settings(deadline=None)
@given(POINTS)
def test_clearing_keeps_the_front(points: np.ndarray) -> None:
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(pareto, "FEW", 0)
        assert (pareto_front(points) == front_by_definition(points)).all()


@settings(deadline=None)
@given(POINTS)
def test_the_order_of_rows_and_columns_does_not_matter(points: np.ndarray) -> None:
    stream = np.random.default_rng(len(points))
    rows, columns = stream.permutation(len(points)), stream.permutation(points.shape[1])
    shuffled = points[rows][:, columns]
    assert (pareto_front(shuffled) == pareto_front(points)[rows]).all()
    assert (front_ranks(shuffled) == front_ranks(points)[rows]).all()


def test_all_copies_share_the_fate_of_their_point() -> None:
    assert pareto_front([[1, 2], [1, 2], [2, 1], [2, 2], [2, 2]]).tolist() == [True, True, True, False, False]


def test_a_tie_in_one_objective_is_decided_by_the_others() -> None:
    assert pareto_front([[1, 5, 5], [1, 5, 6]]).tolist() == [True, False]


def test_crowding_by_hand() -> None:
    front = [[0.0, 10.0], [1.0, 6.0], [4.0, 1.0], [10.0, 0.0]]
    # Point 1: (4 - 0) / 10 + (10 - 1) / 10; point 2: (10 - 1) / 10 + (6 - 0) / 10.
    assert crowding_distance(front).tolist() == pytest.approx([np.inf, 1.3, 1.5, np.inf])


def test_crowding_takes_each_point_once_before_any_twice() -> None:
    front = [[0.0, 10.0], [4.0, 1.0], [4.0, 1.0], [10.0, 0.0]]
    assert crowding_distance(front).tolist() == pytest.approx([np.inf, 2.0, 0.0, np.inf])


@settings(max_examples=50, deadline=None)
@given(arrays(float, st.tuples(st.integers(1, 20), st.integers(1, 4)), elements=st.integers(0, 9), unique=False))
def test_crowding_does_not_depend_on_the_order_of_distinct_points(points: np.ndarray) -> None:
    points = np.unique(points, axis=0)
    rows = np.random.default_rng(len(points)).permutation(len(points))
    assert crowding_distance(points[rows]).tolist() == crowding_distance(points)[rows].tolist()


@pytest.mark.parametrize(
    ("points", "maximise", "message"),
    [
        ([1.0, 2.0], (), "a column each"),
        ([[1.0, np.nan]], (), "point 0 has no value in objective 1"),
        ([[1.0, 2.0]], (2,), "cannot maximise column 2"),
    ],
)
def test_mistakes(points: object, maximise: tuple[int, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        pareto_front(points, maximise)  # type: ignore[arg-type]
