"""Quantities with units: read, refused with an example, printed."""

from __future__ import annotations

import math

import pytest

from plait.core.errors import UserError
from plait.core.units import (
    UNCASED,
    UNITS,
    duration,
    parse,
    parse_duration,
    percent,
    probability,
    replace_units,
    with_unit,
)


@pytest.mark.parametrize(
    ("text", "dimension", "value"),
    [
        ("40ms", "seconds", 0.04),
        ("1.5 s", "seconds", 1.5),
        ("300MB", "bytes", 3e8),
        ("2GiB", "bytes", 2.0 * 2**30),
        ("10M", "count", 1e7),
        ("1e9", "count", 1e9),
        ("2.5GHz", "hertz", 2.5e9),
        ("250mJ", "joules", 0.25),
        ("40W", "watts", 40.0),
        ("300mb", "bytes", 3e8),
        ("2gib", "bytes", 2.0 * 2**30),
        ("40 MS", "seconds", 0.04),
        ("40k", "count", 4e4),
    ],
)
def test_a_number_and_a_unit(text: str, dimension: str, value: float) -> None:
    assert parse(text, dimension, "it") == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("text", ["", "40", "40 apples", "40MB", "-1ms", "0ms", "ms", "1e999s", "nan"])
def test_what_is_no_time_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(
        UserError, match=r"latency '.*' given; write a number above 0 and a unit \(us, ms, s\), as 40ms"
    ):
        parse(text, "seconds", "latency")


def test_case_is_kept_where_it_tells_units_apart() -> None:
    """A megawatt is no milliwatt; of the units that any case may write, no two differ by case alone."""
    with pytest.raises(UserError, match="'40MW' given"):
        parse("40MW", "watts", "power")
    assert all(len({unit.lower() for unit in UNITS[name]}) == len(UNITS[name]) for name in UNCASED)


@pytest.mark.parametrize("dimension", UNITS)
def test_every_dimensions_example_is_one(dimension: str) -> None:
    with pytest.raises(UserError) as refused:
        parse("?", dimension, "it")
    assert parse(str(refused.value).rpartition(" as ")[2].rstrip("."), dimension, "it") > 0


def test_units_inside_a_constraint() -> None:
    assert replace_units("latency <= 40ms and memory < 1.5GB") == "latency <= 0.04 and memory < 1500000000.0"
    assert replace_units("d_s <= 4 and layers2M > x3K") == "d_s <= 4 and layers2M > x3K"  # parts of names are no units


def test_durations_are_read_and_printed() -> None:
    assert [parse_duration(text) for text in ("90s", "10m", "1h30m", "45")] == [90, 600, 5400, 45]
    assert [duration(seconds) for seconds in (45, 598, 12000, 1051200)] == ["45 s", "9 m 58 s", "3 h 20 m", "12 d 4 h"]
    assert parse_duration(1.5) == 1.5
    for wrong in ("", "0s", "1y", "-5m", "1e3s", 0, -5.0, math.nan, math.inf):
        with pytest.raises(UserError, match="is not a duration; write it as 90s, 10m or 1h30m"):
            parse_duration(wrong)


def test_a_duration_is_rounded_before_it_is_split() -> None:
    assert [duration(seconds) for seconds in (59.7, 800.9999, 3599.6)] == ["1 m 0 s", "13 m 21 s", "1 h 0 m"]


def test_percentages_have_a_space_and_probabilities_are_never_certain() -> None:
    assert [percent(0.534), percent(0.534, 1), percent(0.534, sign=True)] == ["53 %", "53.4 %", "+53 %"]
    chances = [probability(chance) for chance in (0.0, 0.004, 0.53, 0.996, 1.0)]
    assert chances == ["< 1 %", "< 1 %", "53 %", "> 99 %", "> 99 %"]


def test_sizes_are_printed_as_they_are_given() -> None:
    assert with_unit(0.04, "ms", space="") == "40ms"
    assert with_unit(3e8, "MB") == "300 MB"
    assert with_unit(123456789, "MB", digits=5) == "123.46 MB"
    assert replace_units(f"energy <= {with_unit(0.5, 'mJ', space='')}") == "energy <= 0.5"
