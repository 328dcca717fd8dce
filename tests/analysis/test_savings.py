"""Savings at equal quality, by hand."""

from __future__ import annotations

import pytest

from plait.analysis.comparisons import gains_at_equal_cost, savings_at_equal_quality
from plait.core.errors import UserError

# The found front falls from perplexity 60 at 10 ms to 40 at 20 ms and 30 at 40 ms; (30 ms, 50) is dominated.
FOUND_MS, FOUND_PPL = [20.0, 10.0, 30.0, 40.0], [40.0, 60.0, 50.0, 30.0]


def test_the_front_is_read_between_its_points() -> None:
    saved = savings_at_equal_quality([30.0, 60.0], [50.0, 35.0], FOUND_MS, FOUND_PPL)
    # At 35: 30 ms for 60; at 50: 15 ms for 30, the dominated model not asked.
    assert [(each.held, each.baseline, each.found) for each in saved.compared] == [(35, 60, 30), (50, 30, 15)]
    assert [each.saving for each in saved.compared] == [0.5, 0.5]
    assert saved.compared[0].factor == 2
    assert (saved.mean, saved.mean_difference, saved.outside) == (0.5, 22.5, 0)


def test_nothing_is_assumed_beyond_the_ends() -> None:
    saved = savings_at_equal_quality([5.0, 24.0, 90.0], [61.0, 40.0, 29.0], FOUND_MS, FOUND_PPL)
    assert saved.outside == 2
    assert saved.mean == pytest.approx(1 - 20 / 24)


def test_quality_at_equal_cost() -> None:
    gained = gains_at_equal_cost([15.0, 30.0, 50.0], [58.0, 41.0, 35.0], FOUND_MS, FOUND_PPL)
    assert [each.baseline - each.found for each in gained.compared] == [8, 6]
    assert gained.outside == 1


def test_a_front_saves_nothing_against_itself() -> None:
    saved = savings_at_equal_quality([10.0, 20.0, 40.0], [60.0, 40.0, 30.0], FOUND_MS, FOUND_PPL)
    assert [each.saving for each in saved.compared] == [0, 0, 0]


def test_mistakes() -> None:
    with pytest.raises(UserError, match="positive"):
        savings_at_equal_quality([0.0], [50.0], FOUND_MS, FOUND_PPL)
    with pytest.raises(UserError, match="empty"):
        savings_at_equal_quality([], [], FOUND_MS, FOUND_PPL)
