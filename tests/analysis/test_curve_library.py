"""Priors from a library of complete curves: for the same architecture, for similar ones, and not for others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from plait.analysis.curve_library import COMMON, Known, Library, library
from plait.analysis.curve_posterior import FREEDOM, LEVEL, ONE_TEXT, learn_covariances, posterior
from plait.analysis.curve_table import CurveTable
from plait.analysis.learning_curve import Calibration, extrapolate, read_curves
from plait.analysis.pareto import Floats
from plait.core.errors import UserError

BUDGETS = [2.0**k * 1e6 for k in range(6)]
X = np.log(np.array(BUDGETS) / BUDGETS[0])
FADING = {"slope": 0.1, "length": 1.0, "tie": -0.5, "shrink": 0.3}


def late(count: int, seed: int, text: str = "one") -> tuple[CurveTable, dict[str, list[float]]]:
    """Half of the architectures have a trait that costs at first and pays late; another trait means nothing."""
    rng = np.random.default_rng(seed)
    trait = np.arange(count) % 2
    own = rng.normal(0, 0.01, (count, 1))
    log_loss = 0.8 - 0.25 * X + trait[:, None] * (0.08 - 0.06 * X) + own
    loss_ASB = np.exp(log_loss[:, None] + rng.normal(0, 0.003, (count, 2, len(X))))
    names = [f"arch{i}" for i in range(count)]
    table = CurveTable(text, names, names, BUDGETS, loss_ASB, np.ones(count), {})
    return table, {name: [float(t), float(rng.normal())] for name, t in zip(names, trait, strict=True)}


def test_a_library_holds_deviations_from_each_texts_mean() -> None:
    (one, traits), (two, _) = late(6, 0), late(6, 1, "two")
    two = CurveTable(two.text, two.names, two.families, BUDGETS, two.loss_ASB * 3, two.cost, {})  # a harder text
    both = library([one, two], traits)
    assert both.runs == 2
    parts = [np.log(t.loss_ASB).mean(1) - np.log(t.loss_ASB).mean((0, 1)) for t in (one, two)]
    np.testing.assert_allclose(both.deviation_TAB, parts)
    assert both.without(["arch0", "arch3"]).names == ["arch1", "arch2", "arch4", "arch5"]


def test_the_prior_is_the_normal_conditional() -> None:
    """Against the same from one joint covariance, written out by entry from d = f(traits) + u + v + seed noise."""
    (one, traits), (two, _) = late(4, 0), late(4, 1, "two")
    lib = library([one, two], traits).without(["arch3"])
    known = Known(lib, {**traits, "again": traits["arch1"]}, {"again": "arch1"})
    names, places = ["again", "arch3"], [1, 4]
    mean_CU, cov = known.prior(names, X[places] + np.log(BUDGETS[0]))
    found = lib.covariances
    points = [(name, b) for name in lib.names for b in range(len(X))] + [(name, b) for name in names for b in places]
    phi = {name: lib.standard(np.array([known.traits[name]]))[0] for name, _ in points}
    who, seen = {"again": "arch1"}, len(lib.names) * len(X)
    joint = np.zeros((len(points), len(points)))
    for i, (a, x) in enumerate(points):
        for j, (b, y) in enumerate(points):
            near = np.exp(-((phi[a] - phi[b]) ** 2).sum() / 8)
            joint[i, j] = found.alike_BB[x, y] * (phi[a] @ phi[b] / 2 + near) / 2
            if who.get(a, a) == who.get(b, b):
                place = lib.names.index(who.get(a, a)) if who.get(a, a) in lib.names else None
                joint[i, j] += found.own_BB[x, y] / (1 if place is None else found.weight_A[place])
            if a == b and i < seen and j < seen:  # the library's mean of two texts, of two seeds each
                joint[i, j] += found.text_BB[x, y] / 2 + lib.seeds_BB[x, y] / 4
            elif a == b and i >= seen and j >= seen:
                joint[i, j] += found.text_BB[x, y]
    gain = joint[seen:, :seen] @ np.linalg.inv(joint[:seen, :seen] + 1e-9 * np.eye(seen))
    told = lib.deviation_TAB.mean(axis=0).ravel()
    np.testing.assert_allclose(mean_CU.ravel(), gain @ told, rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(cov.reshape(4, 4), joint[seen:, seen:] - gain @ joint[:seen, seen:], atol=1e-8)


def test_beyond_its_budgets_a_library_is_the_less_sure_the_farther() -> None:
    table, traits = late(8, 0)
    known = Known(library([table], traits), traits, {name: name for name in table.names})
    x = np.log(BUDGETS[-1]) + np.array([0.0, 1.0, 2.0])
    mean_CU, cov = known.prior(["arch0"], x)
    assert np.ptp(mean_CU) == pytest.approx(0)
    assert np.all(np.diff(np.diag(cov[0, :, 0])) > 0)
    curve = known.library.mean_curve(x)
    np.testing.assert_allclose(np.diff(curve), curve[1] - curve[0])  # the last slope goes on


def test_covariances_are_found_again() -> None:
    """Drawn from the model: what texts share and what they do not, and how long deviations last."""
    rng = np.random.default_rng(0)
    count, x_B = 120, np.log(2.0) * np.arange(5)
    lasting = np.exp(-np.abs(x_B[:, None] - x_B) / 0.5)
    own, text, seeds = 0.05**2 * lasting, 0.02**2 * lasting, 0.005**2 * np.eye(5)
    draw = lambda cov, n: rng.multivariate_normal(np.zeros(5), cov, n)  # noqa: E731
    u_AB = draw(own, count)
    d_TAB = np.stack([u_AB + draw(text, count) + draw(seeds / 2, count) for _ in range(2)])
    found = learn_covariances(d_TAB, rng.normal(size=(count, 3)), seeds, 2, x_B)
    total = np.diag(found.own_BB + found.alike_BB)
    assert np.sqrt(total.mean()) == pytest.approx(0.05, rel=0.25)
    assert np.sqrt(np.diag(found.text_BB).mean()) == pytest.approx(0.02, rel=0.2)
    assert found.own_BB[0, 1] / found.own_BB[0, 0] == pytest.approx(lasting[0, 1], abs=0.2)


def test_one_odd_architecture_does_not_widen_the_others() -> None:
    rng = np.random.default_rng(1)
    x_B = np.log(2.0) * np.arange(4)
    d_TAB = np.repeat(rng.normal(0, 0.02, (1, 30, 4)), 2, axis=0)
    odd_TAB = d_TAB.copy()
    odd_TAB[:, 0] += 1.0
    plain, found = (learn_covariances(d, np.zeros((30, 1)), 1e-6 * np.eye(4), 2, x_B) for d in (d_TAB, odd_TAB))
    assert found.weight_A[0] < 0.1 * found.weight_A[1:].min()
    assert np.diag(found.own_BB).max() < 3 * np.diag(plain.own_BB).max()


def test_traits_foretell_what_first_losses_do_not() -> None:
    """Seen for three budgets, those with the trait are behind; at the end they are ahead, and the library knows."""
    table, traits = late(16, 3)
    asked = table.subset([0, 1, 2, 3])
    seen = asked.observations(dict.fromkeys(asked.names, 2), [0])
    known = Known(library([table], traits).without(asked.names), traits, {})
    calm = Calibration(noise=0.003, noise_freedom=50, process=FADING)
    told, alone, last = (
        extrapolate(seen, BUDGETS[-1:], way, calm, known=known).at(BUDGETS[-1])
        for way in ("library", "hierarchical", "last")
    )
    with_trait = {"arch1", "arch3"}
    assert set(told.ranking[:2]) == with_trait
    assert set(last.ranking[:2]).isdisjoint(with_trait)
    assert told.p_better("arch1", "arch0") > alone.p_better("arch1", "arch0") + 0.1


def test_the_same_architecture_on_another_text_is_remembered() -> None:
    """Traits tell nothing here; that very architecture's end does."""
    table, _ = late(12, 4)
    traits = {name: [0.0] for name in table.names}
    asked = table.subset([0, 1])
    seen = asked.observations(dict.fromkeys(asked.names, 2), [0])
    lib = library([table], traits)
    calm = Calibration(noise=0.003, noise_freedom=50, process=FADING)
    sure = []
    for same in ({name: name for name in table.names}, {}):
        at = extrapolate(seen, BUDGETS[-1:], "library", calm, known=Known(lib, traits, same)).at(BUDGETS[-1])
        sure.append(at.p_better("arch1", "arch0"))
    assert sure[0] > sure[1] + 0.1


def test_without_a_library_it_is_the_hierarchical_way() -> None:
    table, _ = late(4, 5)
    seen = table.observations(dict.fromkeys(table.names, 3), [0])
    one, other = (extrapolate(seen, BUDGETS[-1:], way) for way in ("library", "hierarchical"))
    np.testing.assert_array_equal(one.loss_DBC, other.loss_DBC)


def test_a_library_needs_something_in_common() -> None:
    table, traits = late(4, 0)
    with pytest.raises(UserError, match="two architectures with traits"):
        library([table], {"arch0": traits["arch0"]})


def test_traits_that_do_not_vary_tell_nothing() -> None:
    zero_TB = np.zeros((1, 1))
    lib = Library(["a", "b"], np.array([[1.0, 5.0], [3.0, 5.0]]), [1e6], np.zeros((1, 2, 1)), zero_TB, np.eye(1), 1)
    assert lib.standard(np.array([[5.0, 7.0]])).tolist() == [[3.0, 0.0]]


def test_of_candidates_beyond_its_range_a_library_says_nothing() -> None:
    """The trait lies far outside: the answer is that of the two ways without a library, and no longer the library's."""
    (one, traits), (two, _) = late(12, 0), late(12, 1, "two")
    known = Known(library([one], traits).without(["arch0", "arch1"]), {**traits, "arch0": [9.0, 0.0]}, {})
    assert known.speaks_of(["arch1", "arch2", "arch3"])
    assert known.speaks_of(["arch0", "arch2", "arch3"])  # most are
    assert not known.speaks_of(["arch0"])
    assert Known(known.library, known.traits, {"arch0": "arch2"}).speaks_of(["arch0"])  # it is one of them
    far = Known(known.library, {name: [9.0, 0.0] for name in traits}, {})
    seen = two.observations(dict.fromkeys(two.names[:2], 2), [0])
    draws = 4000
    ways = ("last", "hierarchical")
    expected = np.mean(
        [extrapolate(seen, BUDGETS[-1:], way, draws=draws).loss_DBC.mean(axis=0) for way in ways], axis=0
    )
    found = extrapolate(seen, BUDGETS[-1:], "library", draws=draws, known=far).loss_DBC.mean(axis=0)
    np.testing.assert_allclose(found, expected, rtol=0.02)


def test_the_width_is_of_candidates_that_it_does_not_hold() -> None:
    table, traits = late(12, 3)
    whole = replace(library([table], traits).without(["arch0", "arch1", "arch2"]), width=1.5)
    new = Known(whole, traits, {})
    assert new.width(["arch0", "arch1"]) == 1.5
    held = Known(whole, traits, {name: name for name in table.names})
    assert held.width(["arch3", "arch4", "arch0"]) == 1  # two of three are in it
    assert Known(whole, {"odd": [9.0, 9.0]}, {}).width(["odd"]) == 1  # of which it does not speak
    curves = read_curves(table.subset([0, 1, 2]).observations(dict.fromkeys(["arch0", "arch1", "arch2"], 4), [0]))

    class Wider(Known):
        """The same by hand: what sets candidates apart has 1.5² of the variance, what they have in common has not."""

        def prior(self, names: Sequence[str], x_U: Floats) -> tuple[Floats, Floats]:
            mean_CU, cov_CUCU = super().prior(names, x_U)
            return mean_CU, 1.5**2 * cov_CUCU

    by_hand = Wider(replace(whole, width=1.0), traits, {})
    given, wanted = (posterior(curves, X[-1:] + np.log(BUDGETS[0]), 0.01, known) for known in (new, by_hand))
    np.testing.assert_allclose(given[0], wanted[0])
    np.testing.assert_allclose(given[1], wanted[1])
    unscaled = posterior(curves, X[-1:] + np.log(BUDGETS[0]), 0.01, Known(replace(whole, width=1.0), traits, {}))
    apart = np.array([1.0, -1.0, 0.0])
    assert apart @ given[1] @ apart > 1.2 * (apart @ unscaled[1] @ apart)


def test_the_forecast_is_the_students_t_of_one_joint_covariance() -> None:
    """Written out by entry: two runs of one candidate, one of another, each to its own budget."""
    table, traits = late(6, 7)
    known = Known(library([table], traits).without(["arch0", "arch1"]), traits, {})
    seen = {
        "arch0": {0: [(BUDGETS[0], 2.2), (BUDGETS[2], 1.7)], 1: [(BUDGETS[0], 2.3)]},
        "arch1": {0: [(BUDGETS[0], 2.6), (BUDGETS[1], 2.1)]},
    }
    curves, target, noise = read_curves(seen), np.log(BUDGETS[-1:]), 0.02
    x_U = np.log(np.array(BUDGETS)[[0, 1, 2, 5]])
    mean_CU, cov = known.prior(["arch0", "arch1"], x_U)
    common = LEVEL + known.common(x_U)
    points = [(0, 0, "a0"), (0, 2, "a0"), (0, 0, "a1"), (1, 0, "b0"), (1, 1, "b0"), (0, 3, ""), (1, 3, "")]
    loss = np.log([2.2, 1.7, 2.3, 2.6, 2.1])
    seeds = known.library.seeds_BB[np.ix_([0, 1, 2, 5], [0, 1, 2, 5])] / np.diag(known.library.seeds_BB).mean()
    joint = np.zeros((7, 7))
    for i, (a, u, one) in enumerate(points):
        for j, (b, v, other) in enumerate(points):
            joint[i, j] = cov[a, u, b, v] + common[u, v]
            if i < 5 and j < 5 and one == other:
                joint[i, j] += noise**2 * (seeds[u, v] + 0.1 * (i == j))
    mean = known.library.mean_curve(x_U)[[u for _, u, _ in points]] + [mean_CU[a, u] for a, u, _ in points]
    gain = joint[5:, :5] @ np.linalg.inv(joint[:5, :5])
    off = loss - mean[:5]
    scale = (FREEDOM + off @ np.linalg.inv(joint[:5, :5]) @ off) / (FREEDOM + 4)
    found_mean, found_cov, freedom = posterior(curves, target, noise, known)
    assert freedom == FREEDOM + 4
    np.testing.assert_allclose(found_mean, mean[5:] + gain @ off, rtol=1e-6)
    np.testing.assert_allclose(found_cov, scale * (joint[5:, 5:] - gain @ joint[:5, 5:]), rtol=1e-5, atol=1e-9)


def test_intervals_hold_and_chances_come_true_where_the_library_is_right() -> None:
    """Worlds drawn as the library says: its covariance between candidates, a text's own level, luck of seeds."""
    table, traits = late(14, 2)
    known = Known(library([table], traits).without(["arch0", "arch1", "arch2", "arch3"]), traits, {})
    names, rng = ["arch0", "arch1", "arch2", "arch3"], np.random.default_rng(0)
    x_U = np.log(np.array(BUDGETS)[[0, 2, 5]])
    mean_CU, cov = known.prior(names, x_U)
    cov = cov + known.common(x_U)[None, :, None]
    root = np.linalg.cholesky(cov.reshape(12, 12) + 1e-12 * np.eye(12))
    lib, calm = known.library, Calibration(noise=0.01, noise_freedom=1e6)
    seeds_UU = 0.01**2 * lib.seeds_BB[np.ix_([0, 2], [0, 2])] / np.diag(lib.seeds_BB).mean()
    luck = np.linalg.cholesky(seeds_UU + 0.1 * 0.01**2 * np.eye(2))
    held, said, was = [], [], []
    for draw in range(150):
        level = lib.mean_curve(x_U) + rng.normal(0, 1)
        curves_CU = level + mean_CU + (root @ rng.normal(size=12)).reshape(4, 3)
        seen_CU = curves_CU[:, :2] + rng.normal(size=(4, 2)) @ luck.T
        seen = {
            name: {0: [(float(np.exp(x)), float(np.exp(y))) for x, y in zip(x_U[:2], row_U, strict=True)]}
            for name, row_U in zip(names, seen_CU, strict=True)
        }
        at = extrapolate(seen, BUDGETS[-1:], "library", calm, 400, draw, known=known).at(BUDGETS[-1])
        truth_C = np.exp(curves_CU[:, -1])
        held += [low <= t <= high for (low, high), t in zip(map(at.interval, names), truth_C, strict=True)]
        said += list(at.p_best.values())
        was += [c == truth_C.argmin() for c in range(4)]
    assert 0.85 <= np.mean(held) <= 0.95
    quarters = np.array_split(np.argsort(said), 4)
    assert np.mean(np.array(said)[quarters[-1]]) > np.mean(np.array(said)[quarters[0]]) + 0.2  # they say something
    for quarter in quarters:
        assert np.mean(np.array(was)[quarter]) == pytest.approx(np.mean(np.array(said)[quarter]), abs=0.09)


def test_what_one_text_cannot_tell_is_assumed_flatter_than_the_differences_it_shows() -> None:
    table, traits = late(12, 3)
    whole = library([table], traits)
    found = whole.covariances
    rest_B = np.diag(found.alike_BB + found.own_BB)
    text_B = np.diag(found.text_BB)
    assert text_B[-1] / (text_B[-1] + rest_B[-1]) == pytest.approx(ONE_TEXT)
    np.testing.assert_allclose(text_B / text_B[-1], np.sqrt(rest_B / rest_B[-1]))


def test_what_a_text_makes_of_the_mean_curve_grows_with_the_distance() -> None:
    """As wide as three texts' curves lie apart: about 6 % over a factor of 128, less where the library has more."""
    table, traits = late(6, 7)
    known = Known(library([table], traits), traits, {})
    x_U = np.log(BUDGETS[0]) + np.array([0.0, 0.5, 2.0])
    common = known.common(x_U)
    apart = np.diag(common)[:, None] + np.diag(common) - 2 * common  # the level is unknown: only differences count
    np.testing.assert_allclose(apart, 2 * COMMON * np.abs(x_U[:, None] - x_U), atol=1e-12)
    assert 0.05 < np.sqrt(COMMON * np.log(128)) < 0.08
    several = Known(replace(known.library, deviation_TAB=np.repeat(known.library.deviation_TAB, 3, axis=0)), traits, {})
    np.testing.assert_allclose(several.common(x_U), common * (4 / 3) / 2)


def test_on_a_text_of_the_library_only_the_choice_of_architectures_is_random() -> None:
    (one, traits), (two, _) = late(12, 0), late(12, 1, "two")
    whole = library([one, two], traits)
    rest = whole.without(["arch0", "arch1"])
    here, new = (Known(rest, traits, {}, text) for text in ("two", "another"))
    x_B = rest.x_B
    kept = [i for i, name in enumerate(two.names) if name not in ("arch0", "arch1")]
    np.testing.assert_allclose(here.mean_curve(x_B), np.log(two.loss_ASB[kept]).mean(axis=(0, 1)))
    both = [np.log(table.loss_ASB[kept]).mean(axis=(0, 1)) for table in (one, two)]
    np.testing.assert_allclose(new.mean_curve(x_B), np.mean(both, axis=0))
    cov = rest.covariances
    wanted = (cov.alike_BB + cov.own_BB + cov.text_BB + rest.seeds_BB / rest.runs) / 10
    np.testing.assert_allclose(here.common(x_B), wanted)
    assert new.common(x_B)[-1, -1] > new.common(x_B)[0, 0] == 0
