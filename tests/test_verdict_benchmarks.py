"""What benchmarks of verdicts compute by themselves: how far two trainings agree, and texts copied in part."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from plait.analysis.curve_table import CurveTable
from plait.analysis.learning_curve import CALIBRATION


@pytest.fixture(autouse=True)
def _importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "benchmarks"))


@pytest.mark.parametrize(
    ("other", "agreement", "near"),
    [([1.0, 1.1, 1.2], 1.0, 1.0), ([1.2, 1.1, 1.0], -1.0, 0.0), ([1.1, 1.0, 1.2], 0.5, 0.0)],
)
def test_a_seed_is_judged_by_the_others_alone(other: list[float], agreement: float, near: float) -> None:
    """The mean of both, which races are judged by, is half of the seed itself: by it the last two would do better."""
    verdict = import_module("backtest")
    losses_ASB = np.array([[1.0, 1.1, 1.2], other]).T[:, :, None]
    table = CurveTable("text", ["a", "b", "c"], ["a", "b", "c"], [1e6], losses_ASB, np.ones(3), {})
    found = verdict.between_seeds([verdict.Asked(table, CALIBRATION, 0.1, seed, None, None) for seed in (0, 1)])
    assert found["spearman"] == pytest.approx(agreement)
    assert found["near"] == near


@pytest.mark.parametrize(("kind", "share"), [("short", 1.0), ("some", 0.5), ("copied", 1.0)])
def test_a_share_of_the_pieces_has_a_copy(kind: str, share: float) -> None:
    proxies = import_module("proxy_training")
    tokens = np.arange(20_000)  # all different, but for copies
    found = proxies.copied(tokens, kind, np.random.default_rng(0))
    starts = np.flatnonzero(np.diff(found) < 0) + 1  # where a copy begins
    shortest, longest = proxies.COPIES[kind][0]
    for at in starts.tolist():
        length = int(found[at - 1] - found[at]) + 1
        np.testing.assert_array_equal(found[at : at + length], found[at - length : at])
        assert shortest <= length < longest or found[at - 1] == tokens[-1]
    assert len(found) / len(tokens) - 1 == pytest.approx(share, abs=0.05)
    np.testing.assert_array_equal(np.unique(found), tokens)
