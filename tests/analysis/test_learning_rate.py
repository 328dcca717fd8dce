"""The learning-rate study, by hand."""

from __future__ import annotations

import math

import pytest

from plait.analysis.learning_rate import learning_rate_study
from plait.core.errors import UserError

# Three models, rates 0.01 and 0.1; the small one would do better with the larger rate, the large one diverges there.
MODEL = ["s", "m", "l", "s", "m", "l"]
RATE = [0.01, 0.01, 0.01, 0.1, 0.1, 0.1]
PPL = [60.0, 40.0, 30.0, 35.0, 41.0, math.nan]
PARAMS = [1, 2, 3, 1, 2, 3]


def test_which_rate_wins_and_what_it_does_to_the_ranking() -> None:
    study = learning_rate_study(MODEL, RATE, PPL, PARAMS)
    assert study.models == ["s", "m", "l"]
    assert study.best_rate.tolist() == [0.1, 0.01, 0.01]
    assert study.best_quality.tolist() == [35, 40, 30]
    assert study.src_best == pytest.approx(0.5)
    low, high = study.rates
    assert (low.rate, low.wins, low.share, low.src, low.models) == (0.01, 2, pytest.approx(2 / 3), pytest.approx(1), 3)
    assert low.src_best == pytest.approx(0.5)
    assert (high.wins, high.src) == (1, pytest.approx(-1))


def test_a_rate_is_judged_by_the_models_that_had_it() -> None:
    study = learning_rate_study([*MODEL, "xl"], [*RATE, 0.01], [*PPL, 20.0], [*PARAMS, 4])
    assert [each.models for each in study.rates] == [4, 3]


def test_of_equally_good_rates_the_smaller_wins() -> None:
    assert learning_rate_study(["a", "a"], [0.1, 0.01], [3.0, 3.0], [1, 1]).best_rate.tolist() == [0.01]


@pytest.mark.parametrize(
    ("model", "rate", "proxy", "message"),
    [
        (["a", "a"], [0.1, 0.2], [1, 2], "several values of the proxy"),
        (["a"], [0.1, 0.2], [1, 1], "for every run"),
    ],
)
def test_mistakes(model: list[str], rate: list[float], proxy: list[float], message: str) -> None:
    with pytest.raises(UserError, match=message):
        learning_rate_study(model, rate, [1.0, 2.0], proxy)


def test_several_runs_of_a_rate_are_seeds() -> None:
    """Means 3.0 and 3.5 with deviations of 0.1: clear for a; 3.0 and 3.05: not for b; one seed of c diverged at 0.2."""
    model = [*("a" * 6), *("b" * 6), *("c" * 4)]
    rate = [0.1, 0.1, 0.1, 0.2, 0.2, 0.2] * 2 + [0.1, 0.1, 0.2, 0.2]
    quality = [2.9, 3.0, 3.1, 3.4, 3.5, 3.6, 2.9, 3.0, 3.1, 2.95, 3.05, 3.15, 4.0, 4.2, 2.0, float("nan")]
    found = learning_rate_study(model, rate, quality, [1] * 6 + [2] * 6 + [3] * 4)
    assert found.best_rate.tolist() == [0.1, 0.1, 0.1]
    assert found.best_quality.tolist() == pytest.approx([3.0, 3.0, 4.1])
    # Of four cells with three seeds each and one of two: sums of squares 4 · 0.02 + 0.02 over 9 degrees of freedom.
    assert found.noise == pytest.approx((0.1 / 9) ** 0.5)
    assert [each.clear for each in found.rates] == [2, 0]  # a, and c: the other rate diverges
    single = learning_rate_study(["a", "a"], [0.1, 0.2], [3.0, 3.1], [1, 1])
    assert single.noise is None
    assert single.rates[0].clear is None
