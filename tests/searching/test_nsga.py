"""Who survives, and who becomes a parent."""

from __future__ import annotations

import numpy as np
import pytest

from plait.algorithms.nsga import Nsga2, Nsga3, fill_by_niches
from plait.algorithms.objectives import exact
from plait.space.space import Space

TWO = ["decoder_params", "flops"]
COSTS = np.array([[0, 10], [10, 0], [1, 20], [9, 12], [8.9, 12.1], [20, 1], [30, 30]], dtype=float)


@pytest.mark.parametrize(("population", "survive"), [(2, [0, 1]), (4, [0, 1, 2, 5]), (5, [0, 1, 2, 3, 5])])
def test_the_best_fronts_survive_and_the_last_by_the_room_around(
    population: int, survive: list[int], small: Space
) -> None:
    # Fronts: {0, 1}, then {2, 3, 4, 5} with 3 and 4 close together, then {6}.
    search = Nsga2(small, exact(TWO), population=population)
    assert sorted(search._survivors(np.random.default_rng(0), COSTS).tolist()) == survive


def test_nsga3_spreads_the_last_front_over_directions(small: Space) -> None:
    search = Nsga3(small, exact(TWO), population=4)
    for seed in range(5):
        survive = set(search._survivors(np.random.default_rng(seed), COSTS).tolist())
        assert survive > {0, 1}
        assert survive & {3, 4}  # the middle, which no one holds yet
        assert 6 not in survive


def test_fewer_than_the_population_all_survive(small: Space) -> None:
    assert len(Nsga2(small, exact(TWO), population=50)._survivors(np.random.default_rng(0), COSTS)) == len(COSTS)


def test_the_earlier_front_wins_then_the_emptier_place(small: Space) -> None:
    search = Nsga2(small, exact(TWO))
    rank, room = np.array([1, 0, 0]), np.array([9.0, 1.0, 2.0])
    won = np.bincount(search._tournament(np.random.default_rng(0), 9000, rank, room), minlength=3) / 9000
    # Of nine pairs: the last wins five, the second three, the first only against itself.
    assert won == pytest.approx([1 / 9, 3 / 9, 5 / 9], abs=0.02)


def test_children_fit_their_width(small: Space) -> None:
    search = Nsga2(small, exact(TWO), population=40, iterations=2)
    search.run()
    n = len(search.genes_PG)
    children = search._children(np.random.default_rng(0), 300, np.zeros(n, dtype=np.int64), np.zeros(n))
    assert small.passed(children, small.columns(children))["every layer fits its width"].all()


@pytest.mark.parametrize("seed", range(8))
def test_niches_are_filled_evenly(seed: int) -> None:
    """Two directions with four candidates each: of four places each direction gets two, whatever is drawn."""
    side = np.array([[0.0, 1.0], [0.01, 1.01], [0.02, 1.02], [0.03, 1.03]])
    costs, last = np.concatenate([side, side[:, ::-1]]), np.arange(8)
    none_taken = np.zeros(0, dtype=np.int64)
    chosen = fill_by_niches(np.random.default_rng(seed), costs, none_taken, last, 4, np.eye(2))
    assert sorted(place // 4 for place in chosen.tolist()) == [0, 0, 1, 1]


@pytest.mark.parametrize("seed", range(8))
def test_a_direction_without_any_gets_the_candidate_nearest_to_its_line(seed: int) -> None:
    """Both extremes are taken; of three between them the one in the very middle comes, in whatever order."""
    costs = np.array([[0.0, 1.0], [1.0, 0.0], [0.4, 0.6], [0.5, 0.5], [0.62, 0.38]])
    taken, last = np.arange(2), np.arange(2, 5)
    lines = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    assert fill_by_niches(np.random.default_rng(seed), costs, taken, last, 1, lines).tolist() == [3]
