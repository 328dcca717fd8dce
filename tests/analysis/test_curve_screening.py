"""Screenings as one more column of a library: against the formula, and what they must not tell."""

from __future__ import annotations

import numpy as np
import pytest

from plait.analysis.curve_library import Known, Library
from plait.analysis.curve_screening import LEVEL, SPREADS, ScreenedKnown, ScreenedLibrary, Screenings

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
    seeds_BB = 1e-4 * np.eye(4)
    lib = Library(list(TRAITS), np.array(list(TRAITS.values())), BUDGETS, deviation_TAB, np.zeros(4), seeds_BB, 2)
    loss_TAS = 0.7 + np.stack([0.5 * late_A, 2 * late_A], axis=1) + rng.normal(0, 0.01, (texts, 12, 2))
    return lib, Screenings([1000, 4000], loss_TAS, np.array([1e-4, 4e-4]), 2, 2000)


def known(library: ScreenedLibrary, screened: dict[str, float]) -> ScreenedKnown:
    return ScreenedKnown(library, {**TRAITS, "new": [1.0, 0.0, 0.5]}, {"a1": "a1", "a4": "a4"}, screened)


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
    level = np.full((2, 2), LEVEL) + lib.screening_noise * np.eye(2)
    gain = cov[:, seen] @ np.linalg.inv(cov[np.ix_(seen, seen)] + level)
    apart = np.array([0.15, -0.15])
    spread = found._spread(apart, mean[seen], cov[np.ix_(seen, seen)] + level)
    wanted = mean + gain @ (apart / spread - mean[seen])
    told, told_cov = found.prior(NAMES, np.log(BUDGETS))
    np.testing.assert_allclose(told, wanted.reshape(3, 5)[:, :4], atol=1e-9)
    left = (cov - gain @ cov[seen]).reshape(3, 5, 3, 5)[:, :4, :, :4]
    np.testing.assert_allclose(told_cov, left, atol=1e-9)


@pytest.mark.parametrize("factor", [0.3, 1.0, 3.0])
def test_screenings_are_read_in_units_of_their_spread_on_the_text(factor: float) -> None:
    """Of many candidates the spread is seen; of two it is nearly the library's."""
    library, screenings = made()
    lib = ScreenedLibrary.beside(library, screenings, 4000)
    np.testing.assert_allclose(lib.screening_TA.std(axis=1), 1)
    np.testing.assert_allclose(lib.spread_T, screenings.loss_TAS[..., 1].std(axis=1))
    losses = dict(zip(TRAITS, screenings.loss_TAS[0, :, 1].tolist(), strict=True))
    wider = {name: 0.7 + factor * (loss - 0.7) for name, loss in losses.items()}
    same = ScreenedKnown(lib, TRAITS, {name: name for name in TRAITS}, wider)
    plain = ScreenedKnown(lib, TRAITS, same.same, losses)
    names, end = list(TRAITS), np.log(BUDGETS[-1:])
    np.testing.assert_allclose(same.prior(names, end)[0], plain.prior(names, end)[0], atol=0.01)
    two = np.array([0.05, -0.05])
    spreads = [same._spread(by * two, np.zeros(2), np.eye(2) + LEVEL) for by in (factor, 1.0)]
    assert abs(np.log(spreads[0] / spreads[1])) < abs(np.log(factor)) or factor == 1


def test_the_spread_is_the_most_probable_one() -> None:
    from scipy.optimize import minimize_scalar
    from scipy.stats import multivariate_normal, norm

    lib = ScreenedLibrary.beside(*made(), steps=4000)
    apart, mean, cov = np.array([0.3, -0.1, -0.2]), np.array([0.5, -0.5, 0.2]), np.diag([0.3, 0.4, 0.5])
    middle = float(np.log(lib.spread_T).mean())

    def surprise(ln_spread: float) -> float:
        """The level is unknown: of three numbers two tell."""
        spread = np.exp(ln_spread)
        fit = multivariate_normal(spread * mean, spread**2 * (cov + LEVEL)).logpdf(apart) + ln_spread
        return -float(fit + norm(middle, SPREADS).logpdf(ln_spread))

    best = minimize_scalar(surprise, bounds=(middle - 2, middle + 3), method="bounded").x
    assert np.log(known(lib, {})._spread(apart, mean, cov + LEVEL)) == pytest.approx(best, abs=0.05)


def test_only_differences_between_candidates_tell() -> None:
    lib = ScreenedLibrary.beside(*made(), steps=4000)
    one, other = ({name: loss + by for name, loss in zip(NAMES, (0.9, 0.7, 0.5), strict=True)} for by in (0.0, 0.4))
    at = np.log(BUDGETS[-1:])
    np.testing.assert_allclose(known(lib, one).prior(NAMES, at)[0], known(lib, other).prior(NAMES, at)[0], atol=1e-9)
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
