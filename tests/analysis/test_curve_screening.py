"""Screenings as one more variable of a library: against the formula, and invariances of the forecast."""

from __future__ import annotations

import numpy as np
import pytest

from plait.analysis.curve_library import Known, Library
from plait.analysis.curve_screening import LEVEL, UNITS, Scale, ScreenedKnown, ScreenedLibrary, Screenings

BUDGETS = [1e6, 2e6, 4e6, 8e6]
TRAITS = {f"a{i}": [float(i % 3), float(i % 2), i / 10] for i in range(12)}
NAMES = ["a1", "a4", "new"]


def made(texts: int = 2) -> tuple[Library, Screenings]:
    """The end is half of what the first budgets say, and what the screening says; early losses know nothing of it."""
    rng = np.random.default_rng(3)
    early_A, late_A = rng.normal(0, 0.1, 12), rng.normal(0, 0.1, 12)
    share_B = np.array([0.0, 0.1, 0.5, 1.0])
    curves = early_A[:, None] * (1 - 0.5 * share_B) + late_A[:, None] * share_B
    deviation_TAB = curves + rng.normal(0, 0.005, (texts, 12, 4))
    deviation_TAB -= deviation_TAB.mean(axis=1, keepdims=True)
    curve_TB, seeds_BB = np.zeros((texts, 4)), 1e-4 * np.eye(4)
    lib = Library(list(TRAITS), np.array(list(TRAITS.values())), BUDGETS, deviation_TAB, curve_TB, seeds_BB, 2)
    loss_TAS = 0.7 + np.stack([0.5 * late_A, 2 * late_A], axis=1) + rng.normal(0, 0.01, (texts, 12, 2))
    return lib, Screenings([1000, 4000], loss_TAS, np.array([1e-4, 4e-4]), 2, 2000)


def known(library: ScreenedLibrary, screened: dict[str, float]) -> ScreenedKnown:
    return ScreenedKnown(library, {**TRAITS, "new": [1.0, 0.0, 0.5]}, {"a1": "a1", "a4": "a4"}, screened=screened)


def test_between_the_measured_steps_a_line_and_nothing_beyond_them() -> None:
    _, screenings = made()
    for steps, weight in ((1000, 0.0), (2000, 0.5), (4000, 1.0), (9000, 1.0), (10, 0.0)):
        loss_TA, noise = screenings.at(steps)
        wanted = (1 - weight) * screenings.loss_TAS[..., 0] + weight * screenings.loss_TAS[..., 1]
        np.testing.assert_allclose(loss_TA, wanted)
        assert noise == pytest.approx(1e-4 + weight * 3e-4)


@pytest.mark.parametrize("texts", [1, 2])
def test_the_conditional_is_that_of_the_joint_normal(texts: int) -> None:
    library, screenings = made(texts)
    lib = ScreenedLibrary.beside(library, screenings, 4000)
    losses = {"a1": 0.9, "new": 0.6}  # a4 was not screened
    found = known(lib, losses)
    mean_CK, cov_CKCK = known(lib, {})._columns(tuple(NAMES))
    mean, cov = mean_CK.reshape(-1), cov_CKCK.reshape(15, 15)
    assert np.linalg.eigvalsh(cov).min() > 0
    seen = [4, 14]
    within = cov[np.ix_(seen, seen)] + lib.screening_noise * np.eye(2)
    gain = cov[:, seen] @ np.linalg.inv(within + LEVEL)
    scores = found._scores(np.array([0.9, 0.6]), mean[seen], within)
    wanted = mean + gain @ (scores - mean[seen])
    told, told_cov = found.prior(NAMES, np.log(BUDGETS))
    np.testing.assert_allclose(told, wanted.reshape(3, 5)[:, :4], atol=1e-9)
    left = (cov - gain @ cov[seen]).reshape(3, 5, 3, 5)[:, :4, :, :4]
    np.testing.assert_allclose(told_cov, left, atol=1e-9)


def test_scores_are_robust() -> None:
    """Quartiles set the unit; an outlier moves its own score by a logarithm, and the order of the others not at all."""
    rng = np.random.default_rng(0)
    loss_TA = np.array([[0.1], [2.0]]) * rng.normal(size=(2, 21)) + 1
    scale = Scale.of(loss_TA)
    scores_TA = scale.scores(loss_TA)
    np.testing.assert_allclose(scores_TA.mean(axis=1), 0, atol=1e-12)
    np.testing.assert_allclose(scores_TA.std(axis=1), 1)
    assert scale.unit_T[1] / scale.unit_T[0] == pytest.approx(20, rel=0.5)
    low, middle, high = np.quantile(loss_TA[0], [0.25, 0.5, 0.75])
    assert scale.location_T[0] == middle
    assert scale.unit_T[0] == pytest.approx((high - low) / 1.349)
    best = int(loss_TA[0].argmin())
    lower_TA = loss_TA.copy()
    lower_TA[0, best] -= 100 * scale.unit_T[0]
    moved_TA = Scale.of(lower_TA).scores(lower_TA)
    assert 2 < -moved_TA[0, best] < 5  # by its mean and standard deviation it would be 4.5, with all others alike
    others = [a for a in range(21) if a != best]
    assert np.ptp(moved_TA[0, others]) > 0.5 * np.ptp(scores_TA[0, others])
    assert np.argsort(moved_TA[0]).tolist() == np.argsort(scores_TA[0]).tolist()


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
def test_screenings_are_read_in_the_unit_of_their_text(factor: float) -> None:
    """Of many candidates the unit is seen; of two it is nearly the library's."""
    library, screenings = made()
    lib = ScreenedLibrary.beside(library, screenings, 4000)
    losses = dict(zip(TRAITS, screenings.loss_TAS[0, :, 1].tolist(), strict=True))
    wider = {name: 0.7 + factor * (loss - 0.7) for name, loss in losses.items()}
    same = ScreenedKnown(lib, TRAITS, {name: name for name in TRAITS}, screened=wider)
    plain = ScreenedKnown(lib, TRAITS, same.same, screened=losses)
    names, end = list(TRAITS), np.log(BUDGETS[-1:])
    np.testing.assert_allclose(same.prior(names, end)[0], plain.prior(names, end)[0], atol=0.01)
    two = np.array([0.75, 0.65])
    scores = [same._scores(0.7 + by * (two - 0.7), np.zeros(2), np.eye(2)) for by in (factor, 1.0)]
    apart, usual = (score[0] - score[1] for score in scores)
    assert (apart - usual) * (factor - 1) > 0 or factor == 1


def test_location_and_unit_are_the_most_probable_ones() -> None:
    from scipy.optimize import minimize
    from scipy.stats import multivariate_normal, norm

    lib = ScreenedLibrary.beside(*made(), steps=4000)
    loss, mean, cov = np.array([0.9, 0.5, 0.4]), np.array([0.5, -0.5, 0.2]), np.diag([0.3, 0.4, 0.5])
    scale, middle = lib.scale, float(np.log(lib.scale.unit_T).mean())

    def scores(x: np.ndarray) -> np.ndarray:
        return (np.arcsinh((loss - x[0]) / np.exp(x[1])) - scale.mean_T.mean()) / scale.scale_T.mean()

    def surprise(x: np.ndarray) -> float:
        step = 1e-6
        slopes = [
            (scores(x - np.array([step, 0])) - scores(x))[c] / step for c in range(3)
        ]  # of each score by its loss
        density = multivariate_normal(mean, cov).logpdf(scores(x)) + np.log(slopes).sum()
        return -float(density + norm(middle, UNITS).logpdf(x[1]))

    best = min((minimize(surprise, [at, middle], method="Nelder-Mead") for at in loss), key=lambda r: r.fun).x
    np.testing.assert_allclose(known(lib, {})._scores(loss, mean, cov), scores(best), atol=0.15)


def test_only_differences_between_candidates_tell() -> None:
    lib = ScreenedLibrary.beside(*made(), steps=4000)
    one, other = ({name: loss + by for name, loss in zip(NAMES, (0.9, 0.7, 0.5), strict=True)} for by in (0.0, 0.4))
    at = np.log(BUDGETS[-1:])
    np.testing.assert_allclose(known(lib, one).prior(NAMES, at)[0], known(lib, other).prior(NAMES, at)[0], atol=1e-6)
    plain = Known(lib, {**TRAITS, "new": [1.0, 0.0, 0.5]}, {"a1": "a1", "a4": "a4"})
    alone = known(lib, {"new": 0.1})  # one screening has nothing to differ from
    np.testing.assert_allclose(alone.prior(NAMES, at)[0], plain._columns(tuple(NAMES))[0][:, 3:4], atol=1e-9)
    assert not alone.tested
    assert known(lib, one).tested


def test_who_copies_better_is_expected_to_end_better_and_more_surely() -> None:
    library, screenings = made()
    lib = ScreenedLibrary.beside(library, screenings, 4000)
    before, unsure = known(lib, {}).prior(NAMES, np.log(BUDGETS))
    after, sure = known(lib, {"a1": 0.7, "a4": 0.7, "new": 0.5}).prior(NAMES, np.log(BUDGETS))
    moved = (after - before)[2] - (after - before)[:2].mean(axis=0)
    assert moved[3] < -0.04  # in the library a screening lower by 0.2 goes with an end lower by 0.1
    assert abs(moved[0]) < abs(moved[3])
    assert sure[2, 3, 2, 3] < 0.7 * unsure[2, 3, 2, 3]


def test_leaving_out_forgets_the_screening_too() -> None:
    library, screenings = made()
    rest = ScreenedLibrary.beside(library, screenings, 4000).without(["a1", "a4"])
    keep = [i for i, name in enumerate(TRAITS) if name not in ("a1", "a4")]
    wanted = ScreenedLibrary.beside(library.without(["a1", "a4"]), screenings.of([0, 1], keep), 4000)
    np.testing.assert_allclose(rest.columns_TAK, wanted.columns_TAK)
    np.testing.assert_allclose(rest.covariances.alike_BB, wanted.covariances.alike_BB)
