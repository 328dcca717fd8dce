"""Rank statistics against SciPy, by hand, and on the models that LiteTransformerSearch's authors trained."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.analysis import rank
from plait.core.errors import UserError

scipy_stats = pytest.importorskip("scipy.stats")

PAIRS = st.lists(st.tuples(st.integers(-3, 3), st.integers(-3, 3)), min_size=2, max_size=30).map(
    lambda pairs: np.array(pairs, float).T
)
NEEDS_ORDER = pytest.mark.filterwarnings("ignore:An input array is constant")


@NEEDS_ORDER
@settings(deadline=None)
@given(PAIRS)
def test_spearman_and_kendall_agree_with_scipy(pair: np.ndarray) -> None:
    expected = scipy_stats.spearmanr(*pair).statistic
    assert rank.spearman(*pair) == pytest.approx(expected, abs=1e-12, nan_ok=True)
    assert rank.kendall(*pair) == pytest.approx(scipy_stats.kendalltau(*pair).statistic, abs=1e-12, nan_ok=True)
    assert rank.ranks(pair[0]).tolist() == scipy_stats.rankdata(pair[0]).tolist()


@settings(deadline=None)
@given(PAIRS, st.integers(1, 100))
def test_the_order_of_models_does_not_matter(pair: np.ndarray, percent: int) -> None:
    shuffled = pair[:, np.random.default_rng(percent).permutation(pair.shape[1])]
    for statistic in (rank.common_ratio, rank.top_spearman):
        assert statistic(*shuffled, percent) == pytest.approx(statistic(*pair, percent), nan_ok=True)


@settings(deadline=None)
@given(PAIRS)
def test_what_is_the_same_in_any_scale(pair: np.ndarray) -> None:
    stretched = np.exp(pair)
    assert rank.spearman(*stretched) == pytest.approx(rank.spearman(*pair), nan_ok=True)
    assert rank.spearman(pair[0], -pair[1]) == pytest.approx(-rank.spearman(*pair), nan_ok=True)
    assert rank.common_ratio(*pair, 100) == 1


def test_kendall_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    pair = np.random.default_rng(0).integers(0, 9, (2, 50))
    whole = rank.kendall(*pair)
    monkeypatch.setattr(rank, "PAIRS", 120)
    assert rank.kendall(*pair) == whole


def test_common_ratio_by_hand() -> None:
    truth = [10, 9, 8, 7, 6, 5, 4, 3, 2, 1]
    proxy = [10, 1, 9, 8, 2, 3, 4, 5, 6, 7]
    assert rank.common_ratio(proxy, truth, 10) == 1
    assert rank.common_ratio(proxy, truth, 29) == 0.5  # two of ten: the number is rounded down
    assert rank.common_ratio(proxy, truth, 40) == 0.75
    # Of three that tie for the second place each has a third of it.
    assert rank.common_ratio([5, 4, 4, 4], [4, 3, 2, 1], 50) == pytest.approx((1 + 1 / 3) / 2)


def test_top_spearman_by_hand() -> None:
    truth, proxy = [6, 5, 4, 3, 2, 1], [4, 5, 6, 3, 2, 1]
    assert rank.top_spearman(proxy, truth, 50) == -1
    assert rank.top_spearman(proxy, truth, 100) == rank.spearman(proxy, truth) > 0


def test_bins() -> None:
    size = np.arange(1, 9)
    truth = np.array([1, 2, 3, 4, 8, 7, 6, 5])
    first, second = rank.spearman_by_size(size, truth, size, 2)
    assert (first.models, first.src, second.models, second.src) == (4, 1, 4, -1)
    assert (first.low, second.high) == (1, 8)
    given_edges = rank.spearman_by_size(size, truth, size, [1, 3, 8])
    assert [each.models for each in given_edges] == [2, 6], "the last bin holds its upper end"
    (alone,) = rank.spearman_by_size([1, 2], [1, 2], [7, 7], 4)
    assert (alone.models, alone.src) == (2, 1)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rank.spearman([1, 2], [1]), "on both sides"),
        (lambda: rank.spearman([1, np.nan], [1, 2]), "missing"),
        (lambda: rank.common_ratio([1, 2], [1, 2], 0), "more than 0"),
        (lambda: rank.common_ratio([], [], 10), "nothing to rank"),
        (lambda: rank.spearman_by_size([1], [1], [1], 0), "at least 1"),
        (lambda: rank.spearman_by_size([1], [1], [1], [2, 1]), "increasing edges"),
    ],
)
def test_mistakes(call: Callable[[], object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        call()


@pytest.mark.parametrize(
    ("name", "models", "decoder", "total", "common"),
    [
        ("random_TransXL_wt103", 200, 0.974, 0.261, 0.60),
        ("random_TransXL_wt103_homogeneous", 98, 0.950, 0.332, 0.78),
        ("random_GPT2_wt103", 200, 0.967, 0.737, 0.70),
    ],
)
def test_the_trained_models(
    seed_data: Callable[[str], Path], name: str, models: int, decoder: float, total: float, common: float
) -> None:
    rows = json.loads(seed_data("lts_trained_random.json").read_text())[name]
    decoder_params, total_params, ppl = (
        np.array([row[key] for row in rows], float) for key in ("decoder_params", "total_params", "valid_ppl")
    )
    assert len(rows) == models
    assert round(rank.spearman(decoder_params, -ppl), 3) == decoder
    assert round(rank.spearman(total_params, -ppl), 3) == total
    assert round(rank.common_ratio(decoder_params, -ppl, 10), 2) == common
    assert 0.57 <= rank.top_spearman(decoder_params, -ppl, 10) <= 0.93
