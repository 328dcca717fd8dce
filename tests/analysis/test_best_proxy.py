"""The best of many proxies, and how sure that is."""

from __future__ import annotations

import numpy as np

from plait.analysis.best_proxy import best_proxy
from plait.analysis.rank import spearman_interval


def test_the_best_of_many_that_know_nothing_is_not_called_related() -> None:
    """Its own interval excludes 0 in a third of the studies, because it was chosen as the best of 20."""
    rng, excluding, related = np.random.default_rng(0), 0, 0
    for _ in range(60):
        truth, proxies = rng.normal(size=30), rng.normal(size=(20, 30))
        found = best_proxy(list(proxies), truth)
        assert found is not None
        low, _ = spearman_interval(proxies[found.best], truth) or (0.0, 0.0)
        excluding += low > 0
        related += found.related
    assert excluding > 12
    assert related <= 6


def test_equally_good_proxies_are_not_distinguished() -> None:
    """Neither the first, nor any: eleven comparisons at 5 % each would call one worse in half of the studies."""
    rng, lost, apart = np.random.default_rng(1), 0, 0
    for _ in range(40):
        truth = rng.normal(size=40)
        shared = truth + 0.7 * rng.normal(size=40)
        found = best_proxy([shared + 0.4 * rng.normal(size=40) for _ in range(12)], truth)
        assert found is not None
        lost += 0 not in (found.best, *found.tied)
        apart += len(found.tied) < 11
    assert lost <= 4
    assert apart <= 8


def test_a_clearly_better_proxy_is_the_best_alone() -> None:
    rng = np.random.default_rng(2)
    truth = rng.normal(size=100)
    found = best_proxy([rng.normal(size=100), truth + 0.1 * rng.normal(size=100), np.ones(100)], truth)
    assert found is not None
    assert (found.best, found.related, found.tied) == (1, True, ())


def test_equal_rankings_are_tied_and_few_models_tell_nothing() -> None:
    truth = np.arange(8.0)
    found = best_proxy([truth, truth**3, -truth], truth)
    assert found is not None
    assert (found.best, found.tied) == (0, (1,))
    few = best_proxy([np.arange(4.0), np.ones(4)], np.arange(4))
    assert few is not None
    assert not few.related  # one order of 24
    assert best_proxy([[1, 2, 3]], [1, 2, 3]) is None
    assert best_proxy([np.ones(9)], np.arange(9)) is None


def test_a_proxy_that_ranks_the_wrong_way_is_not_called_related() -> None:
    truth = np.arange(30.0)
    found = best_proxy([-truth, -truth + np.sin(truth)], truth)
    assert found is not None
    assert not found.related
