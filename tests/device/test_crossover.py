"""From which length on one is faster than another."""

from __future__ import annotations

import pytest

from plait.api.bench import DecodeBenchResult
from plait.device.lengths import crossover
from plait.device.model_bench import DecodeTiming


def test_between_two_lengths_it_is_where_the_powers_meet():
    """2 ms whatever the length, against 1 µs per token: equal at 2000."""
    assert crossover([1000, 4000], [2.0, 2.0], [1.0, 4.0]) == pytest.approx(2000)
    assert crossover([500, 1000, 4000, 8000], [2.0] * 4, [0.5, 1.0, 4.0, 8.0]) == pytest.approx(2000)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [([1.0, 1.0], [2.0, 2.0]), ([2.0, 2.0], [1.0, 1.0]), ([1.0, 2.0], [2.0, 1.0]), ([1.0, 1.0], [1.0, 1.0])],
)
def test_who_is_always_ahead_or_falls_behind_does_not_cross(ours, theirs):
    assert crossover([1000, 4000], ours, theirs) is None


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [([2.04, 1.0], [2.0, 2.0]), ([4.0, 1.96], [2.0, 2.0]), ([2.02, 1.98, 2.03, 1.99], [2.0, 2.0, 2.0, 2.0])],
)
def test_times_that_are_nearly_equal_on_one_side_do_not_tell(ours, theirs):
    """The next measurement may say the opposite: two equal blocks were said to cross in half of the measurements."""
    assert crossover([1000, 4000, 8000, 16000][: len(ours)], ours, theirs) is None
    assert crossover([1000, 4000], [2.2, 1.8], [2.0, 2.0]) is not None


def test_only_the_last_crossing_counts():
    assert crossover([1, 2, 4, 16], [1.0, 3.0, 2.0, 2.0], [2.0, 2.0, 1.0, 4.0]) == pytest.approx(8)


def test_models_cross_at_equal_numbers_of_rows():
    def row(spec, batch, position, ms, generator="plait"):
        return DecodeTiming(spec, generator, batch, position, 1e3 * batch / ms, ms)

    rows = (
        row("fixed", 1, 1000, 2.0), row("fixed", 1, 4000, 2.0), row("fixed", 8, 1000, 9.0), row("fixed", 8, 4000, 9.0),
        row("growing", 1, 1000, 1.0), row("growing", 1, 4000, 4.0), row("growing", 8, 1000, 1.0),
        row("growing", 1, 1000, 3.0, "Hugging Face"), row("growing", 1, 4000, 3.0, "Hugging Face"),
    )  # fmt: skip
    (found,) = DecodeBenchResult("GPU", "bfloat16", {}, rows).as_dict()["crossovers"]
    assert found == {"faster": "fixed", "slower": "growing", "batch": 1, "tokens": pytest.approx(2000)}
