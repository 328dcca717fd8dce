"""The verdict on losses whose trend is planted; the interval covers what it should."""

from __future__ import annotations

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.evals.evaluation import Subject
from plait.evals.per_token import ExtrapolationEvaluation, trend


def planted(slope: float, *, noise: float = 0.1, sequences: int = 32, seed: int = 0) -> np.ndarray:
    """`slope` nats from one octave to the next, from the first position on."""
    stream = np.random.default_rng(seed)
    octave = np.ceil(np.log2(np.arange(1, 513)))
    level = stream.normal(scale=0.3, size=(sequences, 1))
    return np.asarray(3 + slope * octave + level + stream.normal(scale=noise, size=(sequences, 512)))


@pytest.mark.parametrize(
    ("slope", "verdict"), [(-0.2, "keeps falling"), (1.5, "rises"), (0.05, "rises"), (-0.05, "keeps falling")]
)
def test_a_planted_trend_is_found(slope: float, verdict: str) -> None:
    assert trend(planted(slope), 64).verdict == verdict


def test_the_slope_is_exact_without_noise() -> None:
    found = trend(planted(-0.2, noise=0.0), 64)
    assert found.octaves == (64, 128, 256, 512)
    assert found.slope == pytest.approx(-0.2, abs=1e-12)
    assert (found.low, found.high) == pytest.approx((-0.2, -0.2), abs=1e-12)
    np.testing.assert_allclose(np.diff(found.losses), -0.2, atol=1e-12)


def test_levels_of_texts_do_not_widen_the_interval() -> None:
    quiet = trend(planted(-0.02, noise=0.01), 64)
    assert quiet.high - quiet.low < 0.002


def test_flat_and_undecided_are_two_things() -> None:
    assert trend(planted(0.0, noise=0.02), 64).verdict == "flat"
    assert trend(planted(0.004, noise=0.01), 64).verdict == "flat"  # significant, and of no consequence
    assert trend(planted(0.0, noise=3.0, sequences=4), 64).verdict == "not distinguishable from flat"


@pytest.mark.parametrize("sequences", [2, 3, 40])
def test_the_interval_covers_the_truth_as_often_as_it_says(sequences: int) -> None:
    """A bootstrap of two sequences holds it in half of all cases."""
    covered = 0
    for seed in range(200):
        found = trend(planted(-0.1, noise=1.0, sequences=sequences, seed=seed), 64)
        covered += found.low <= -0.1 <= found.high
    assert 183 <= covered <= 198


def test_refusals() -> None:
    with pytest.raises(UserError, match="at least 2"):
        trend(planted(0, sequences=1), 64)
    with pytest.raises(UserError, match="at least twice"):
        trend(planted(0), 257)


def test_the_evaluation(subject: Subject) -> None:
    made = ExtrapolationEvaluation(documents=4).resolved(subject)
    assert made.length == 256  # eight times the trained length
    found = made.measure(subject)
    assert found["octaves"] == [32, 64, 128, 256]
    assert found["sequences"] == 2
    columns, rows = made.table({"a run": found})
    assert len(columns) == len(rows[0])
    assert rows[0][-1] == found["verdict"]
    assert all("trained length" in picture for picture in made.figures({"a run": found}).values())


def test_short_texts_get_a_shorter_study(subject: Subject) -> None:
    short = Subject(subject.model, subject.tokens[:150], 32)
    assert ExtrapolationEvaluation().resolved(short).length == 64
