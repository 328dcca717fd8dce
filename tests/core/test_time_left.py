"""Estimates of the remaining time of a stage."""

from __future__ import annotations

import pytest

from plait.core.units import TimeLeft


class Told:
    """A stage that is told second by second."""

    def __init__(self) -> None:
        self.now = 0.0
        self.left = TimeLeft(lambda: self.now)

    def tell(self, share: float | None, after: float = 1.0) -> float | None:
        self.now += after
        self.left.update(share)
        return self.left.seconds


def test_the_start_of_a_stage_is_no_part_of_its_pace() -> None:
    """As a comparison begins: ten seconds of starting and timing, then 1 % per second."""
    told = Told()
    told.tell(0.0)
    for _ in range(10):
        assert told.tell(0.0) is None
    early = [told.tell(percent / 100) for percent in range(1, 6)]
    assert early == [None] * 5
    told.tell(0.06)
    assert told.tell(0.07) == pytest.approx(93.0)
    assert told.tell(0.08) == pytest.approx(92.0)


def test_the_pace_is_the_recent_one() -> None:
    """First legs that are five times slower are forgotten once as much was done after them."""
    told = Told()
    told.tell(0.0)
    for percent in range(1, 11):
        told.tell(percent / 100, after=5.0)
    for percent in range(11, 31):
        left = told.tell(percent / 100)
    assert left == pytest.approx(70.0)


def test_a_stage_that_stands_still_takes_longer_and_longer() -> None:
    told = Told()
    for percent in range(0, 21, 2):
        before = told.tell(percent / 100)
    stalled = told.tell(0.2, after=60.0)
    assert before is not None
    assert stalled is not None
    assert stalled > 5 * before


def test_another_stage_begins_anew() -> None:
    told = Told()
    for share in (0.0, 0.1, 0.5, 0.9):
        told.tell(share, after=10.0)
    assert told.left.seconds is not None
    assert told.tell(0.0) is None
    for share in (0.1, 0.2, None):
        told.tell(share, after=10.0)
    assert told.left.seconds is None


def test_a_stage_that_turns_out_longer_is_told_at_its_own_speed() -> None:
    """A comparison plans its trainings again while they run: 40 % become 30 %, at 1 % per second as before."""
    told = Told()
    for percent in range(41):
        told.tell(percent / 100)
    assert told.tell(0.3) == pytest.approx(70 * 4 / 3, rel=0.1)
    for percent in range(31, 61):
        left = told.tell(percent / 100)
        assert left is not None
    assert left == pytest.approx(40.0, rel=0.1)


def test_what_falls_after_the_end_is_another_stage() -> None:
    told = Told()
    for percent in range(101):
        told.tell(percent / 100)
    assert told.tell(0.6, after=10.0) is None


def test_a_long_stage_is_told_after_a_minute_and_the_end_has_none_left() -> None:
    """Of a day's training a twentieth would be an hour."""
    told = Told()
    told.tell(0.0)
    found = [told.tell(second / 7200) for second in range(1, 101)]
    assert found[:20] == [None] * 20
    assert found[-1] == pytest.approx(7100.0, rel=0.01)
    assert told.tell(1.0) is None
