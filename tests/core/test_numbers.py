"""Short numbers: three digits, the right prefix at every border."""

from __future__ import annotations

import pytest

from plait.core.units import short


@pytest.mark.parametrize(
    ("number", "shown"),
    [(0, "0"), (12, "12"), (0.12345, "0.123"), (999, "999"), (1_234, "1.23 k"), (1_606_912, "1.61 M"), (2.5e9, "2.5 G"),
     (-4.2e12, "-4.2 T"), (3e15, "3 P"), (5.38e18, "5.38 E"), (1e21, "1e+03 E")],
)  # fmt: skip
def test_three_digits(number: float, shown: str) -> None:
    assert short(number) == shown


@pytest.mark.parametrize(
    ("number", "shown"), [(999.6, "1 k"), (999_999, "1 M"), (999_499, "999 k"), (-999_999_999, "-1 G")]
)
def test_rounding_may_reach_the_next_prefix(number: float, shown: str) -> None:
    assert short(number) == shown


def test_with_a_unit() -> None:
    assert short(12_345_678, "FLOP") == "12.3 MFLOP"
    assert short(950, "FLOP") == "950 FLOP"
