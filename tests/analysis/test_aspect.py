"""The aspect-ratio study, by hand."""

from __future__ import annotations

import math

import pytest

from plait.analysis.comparisons import aspect_study
from plait.core.errors import UserError


def test_spreads_at_equal_size() -> None:
    study = aspect_study(
        width=[1024, 128, 512, 256, 64],
        depth=[4, 32, 8, 8, 8],
        size=[40.0, 40.4, 39.9, 10.0, 1.0],
        metrics={"ppl": [30.0, 31.5, 30.3, 50.0, 90.0], "ms": [10.0, 13.0, 11.0, 4.0, 1.0]},
    )
    (group,) = study.groups
    assert sorted(group.models.tolist()) == [0, 1, 2]
    assert (group.size, group.aspect) == ((39.9, 40.4), (4, 256))
    assert group.spread == {"ppl": pytest.approx(1.05), "ms": pytest.approx(1.3)}
    assert study.alone == 2
    assert study.largest("ms") == group.spread["ms"]


def test_groups_are_as_wide_as_the_tolerance_says() -> None:
    sizes = [1.0, 1.015, 1.03, 1.045]  # each is near the next, the last is not near the first
    study = aspect_study([1] * 4, [1] * 4, sizes, {}, tolerance=0.02)
    assert [group.models.tolist() for group in study.groups] == [[0, 1], [2, 3]]
    assert aspect_study([1] * 4, [1] * 4, sizes, {}, tolerance=0.05).groups[0].models.tolist() == [0, 1, 2, 3]


def test_without_tolerance_sizes_must_be_equal() -> None:
    study = aspect_study([1] * 3, [1] * 3, [2.0, 2.0, 2.0001], {}, tolerance=0)
    assert [group.models.tolist() for group in study.groups] == [[0, 1]]


def test_no_two_of_one_size() -> None:
    study = aspect_study([1, 1], [1, 1], [1, 2], {"ppl": [1, 2]})
    assert (study.groups, study.alone) == ([], 2)
    assert math.isnan(study.largest("ppl"))


def test_missing_values_are_refused() -> None:
    with pytest.raises(UserError, match="'ppl'"):
        aspect_study([1], [1], [1], {"ppl": [math.nan]})
