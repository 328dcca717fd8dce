"""What a library of complete curves tells: of the same architecture, of those built alike, and of nobody else."""

from __future__ import annotations

import numpy as np
import pytest

from plait.analysis.curve_library import Known, Library, library
from plait.analysis.curve_table import CurveTable
from plait.analysis.learning_curve import Calibration, extrapolate
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


def kernel(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.asarray(0.05**2 * (1 + np.minimum(x[:, None], y[None])))


def test_a_library_holds_deviations_from_each_texts_mean() -> None:
    (one, traits), (two, _) = late(6, 0), late(6, 1, "two")
    two = CurveTable(two.text, two.names, two.families, BUDGETS, two.loss_ASB * 3, two.cost, {})  # a harder text
    both = library([one, two], traits)
    np.testing.assert_allclose(both.deviation_AB.mean(axis=0), 0, atol=1e-12)
    assert (both.texts, both.runs) == (2, 4)
    parts = [np.log(t.loss_ASB).mean(1) - np.log(t.loss_ASB).mean((0, 1)) for t in (one, two)]
    np.testing.assert_allclose(both.deviation_AB, (parts[0] + parts[1]) / 2)
    assert both.without(["arch0", "arch3"]).names == ["arch1", "arch2", "arch4", "arch5"]


def test_the_prior_is_the_normal_conditional() -> None:
    """Against the same from one joint covariance, written out entry by entry."""
    table, traits = late(4, 0)
    lib = library([table], traits).without(["arch3"])
    known = Known(lib, traits, {"again": "arch1"})
    names, x_U = ["again", "arch3"], np.array([0.5, 2.0])
    known = Known(lib, {**traits, "again": traits["arch1"]}, known.same)
    mean_CU, cov = known.prior(names, x_U, kernel, noise=0.01, trait=1.3, kin=0.7)
    points = [(name, x) for name in lib.names for x in X] + [(name, x) for name in names for x in x_U]
    phi = {name: lib.standard(np.array([known.traits[name]]))[0] for name, _ in points}
    who = {"again": "arch1"}
    joint = np.zeros((len(points), len(points)))
    for i, (a, x) in enumerate(points):
        for j, (b, y) in enumerate(points):
            k = kernel(np.array([x]), np.array([y]))[0, 0]
            same = who.get(a, a) == who.get(b, b)
            joint[i, j] = k * (1.3**2 / 2 * phi[a] @ phi[b] + 0.7**2 * same)
            if i < 18 and j < 18 and a == b:
                joint[i, j] += k + 0.01**2 / 2 * (x == y)
    gain = joint[18:, :18] @ np.linalg.inv(joint[:18, :18])
    np.testing.assert_allclose(mean_CU.ravel(), gain @ lib.deviation_AB.ravel(), rtol=1e-6)
    np.testing.assert_allclose(cov.reshape(4, 4), joint[18:, 18:] - gain @ joint[:18, 18:], atol=1e-10)


def test_traits_foretell_what_first_losses_do_not() -> None:
    """Seen for three budgets, those with the trait are behind; at the end they are ahead, and the library knows."""
    table, traits = late(16, 3)
    asked = table.subset([0, 1, 2, 3])
    seen = asked.observations(dict.fromkeys(asked.names, 2), [0])
    known = Known(library([table], traits).without(asked.names), traits, {})
    calm = Calibration(noise=0.003, noise_freedom=50, library=FADING, process=FADING)
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
    calm = Calibration(noise=0.003, noise_freedom=50, library=FADING, process=FADING)
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
    lib = Library(["a", "b"], np.array([[1.0, 5.0], [3.0, 5.0]]), [1e6], np.zeros((2, 1)), 1, 1)
    assert lib.standard(np.array([[5.0, 7.0]])).tolist() == [[3.0, 0.0]]
