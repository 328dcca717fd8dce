"""Paired losses: the verdict for two copies, a worse model, diverged runs and few seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from plait.analysis.paired import NOT_DISTINGUISHABLE, Pair, _window_variance, compare_losses
from plait.analysis.seed_noise import SeedNoise, seed_noise
from plait.analysis.serial import independent_count
from plait.core.errors import UserError

NOISE = 0.01


def drawn(
    rng: np.random.Generator, architectures: int, seeds: int, worse: float = 0.0, shared: float = 0.3, windows: int = 32
) -> dict[str, dict[int, np.ndarray]]:
    """Runs of equal architectures but the first, worse by so many times the noise. A part of the seeds' variance is
    the batches', which all share."""
    hard_W = rng.gamma(4, 0.5, windows)
    batches_S = rng.normal(0, NOISE * shared**0.5, seeds)

    def run(place: int, seed: int) -> np.ndarray:
        own = rng.normal(0, NOISE * (1 - shared) ** 0.5)
        ahead = worse * NOISE if place == 0 else 0.0
        return np.asarray(hard_W + batches_S[seed] + own + ahead + rng.normal(0, 0.02, windows))

    return {f"arch{place}": {seed: run(place, seed) for seed in range(seeds)} for place in range(architectures)}


@pytest.mark.parametrize(("architectures", "seeds"), [(2, 2), (2, 3), (2, 5), (4, 3)])
@pytest.mark.parametrize("shared", [0.0, 0.6])
def test_copies_are_not_distinguishable(architectures: int, seeds: int, shared: float) -> None:
    rng = np.random.default_rng([architectures, seeds])
    alarms = [
        any(p.verdict != NOT_DISTINGUISHABLE for p in compare_losses(drawn(rng, architectures, seeds, 0, shared)).pairs)
        for _ in range(300)
    ]
    luck = 3 * math.sqrt(0.05 * 0.95 / 300)
    assert np.mean(alarms) <= 0.05 + luck


@pytest.mark.parametrize(("architectures", "seeds", "shared"), [(2, 4, 0.0), (2, 5, 0.6), (3, 5, 0.0), (3, 4, 0.6)])
def test_three_times_the_noise_is_found(architectures: int, seeds: int, shared: float) -> None:
    rng = np.random.default_rng([architectures, seeds])
    found = []
    for _ in range(200):
        pairs = compare_losses(drawn(rng, architectures, seeds, 3, shared)).pairs
        found += [pair.verdict == "b" for pair in pairs if pair.a == "arch0"]
    luck = 3 * math.sqrt(0.1 * 0.9 / len(found))
    assert np.mean(found) >= 0.9 - luck


def test_two_architectures_one_window_are_welchs_test() -> None:
    """One may be noisier than the other, which the test of equal variances would take for a difference."""
    a, b = [2.0, 2.3, 2.1], [2.6, 2.1, 3.2]
    (pair,) = compare_losses({"a": dict(enumerate(a)), "b": dict(enumerate(b))}).pairs
    expected = stats.ttest_ind(a, b, equal_var=False)
    assert pair.p == pytest.approx(expected.pvalue)
    assert pair.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))


def test_three_architectures_one_window_leave_out_the_seeds_effect() -> None:
    """The residual mean square of the two-way layout, by hand."""
    table = np.array([[1.0, 2.0, 3.1], [1.2, 2.1, 3.2], [1.6, 2.7, 3.5]])
    rest = table - table.mean(1, keepdims=True) - table.mean(0) + table.mean()
    error = math.sqrt((rest**2).sum() / 4 * 2 / 3)
    pair = compare_losses({name: dict(enumerate(row)) for name, row in zip("abc", table, strict=True)}).pairs[0]
    assert pair.p == pytest.approx(2 * stats.t.sf(abs(pair.difference) / error, 4))


def test_windows_that_disagree_widen_the_interval() -> None:
    rng = np.random.default_rng(0)
    even = {name: {s: 2 + rng.normal(0, 1e-3) + np.zeros(8) for s in range(3)} for name in "ab"}
    gap_W = np.array([1, -1] * 4) * 0.5
    uneven = {"a": {s: x + gap_W for s, x in even["a"].items()}, "b": even["b"]}
    narrow, wide = (compare_losses(losses).pairs[0].interval for losses in (even, uneven))
    assert narrow is not None
    assert wide is not None
    # A mean of 8 windows with a standard deviation of 0.53: t(7) · 0.19 to either side.
    assert wide[1] - wide[0] == pytest.approx(2 * stats.t.ppf(0.975, 7) * gap_W.std(ddof=1) / math.sqrt(8), rel=0.02)
    assert narrow[1] - narrow[0] < 0.01


def test_what_differs_by_seed_and_window_at_once_is_no_doubt_about_the_windows() -> None:
    """Its variance shrinks with the seeds before it is taken off: else the windows' own part comes out too small."""
    rng, seeds, windows = np.random.default_rng(7), 4, 50
    found = []
    for _ in range(400):
        a_SW, b_SW = rng.normal(0, 0.3, (2, seeds, windows))
        a_SW = a_SW + rng.normal(0, 0.2, windows)
        variance = _window_variance(a_SW, b_SW)
        assert variance is not None
        found.append(variance.value)
    # Correlations of neighbours that are there by chance add a quarter; what differs by both would double it.
    assert 0.95 < np.mean(found) / (0.2**2 / windows) < 1.35


def test_windows_of_one_document_are_no_independent_ones() -> None:
    """Architectures that are equal on average, one better in some documents and the other in others: eight windows
    each. As many independent windows as documents are what the interval has to go by."""
    rng, windows, size = np.random.default_rng(3), 64, 8
    told, wide = [], []
    for _ in range(300):
        gap_W = np.repeat(rng.normal(0, 0.1, windows // size), size) + rng.normal(0, 0.05, windows)
        orders = gap_W, rng.permutation(gap_W)
        pairs = [
            compare_losses({"a": {s: 3 + gap + rng.normal(0, 1e-4) for s in range(3)},
                            "b": {s: np.full(windows, 3 + rng.normal(0, 1e-4)) for s in range(3)}}).pairs[0]
            for gap in orders
        ]  # fmt: skip
        told.append([pair.verdict != NOT_DISTINGUISHABLE for pair in pairs])
        wide.append([pair.interval[1] - pair.interval[0] for pair in pairs if pair.interval])
    in_order, mixed = np.mean(told, axis=0)
    assert in_order < 0.2  # few documents: their number is not well known
    assert mixed > 0.4  # as before, and as by chance where the order says nothing
    assert np.median(wide, axis=0)[0] > 1.8 * np.median(wide, axis=0)[1]


def test_p_best_knows_that_windows_of_one_document_are_alike() -> None:
    gap_W = 0.03 + np.repeat(np.random.default_rng(5).normal(0, 0.1, 8), 8)
    runs = {"a": {s: 3 + gap_W + 1e-4 * s for s in range(3)}, "b": {s: np.full(64, 3 + 1e-4 * s) for s in range(3)}}
    mixed = {
        name: {s: x_W[np.random.default_rng(1).permutation(64)] for s, x_W in by.items()} for name, by in runs.items()
    }
    one, other = (
        max(judged.p_best or 0.0 for judged in compare_losses(losses).architectures) for losses in (runs, mixed)
    )
    assert one < other - 0.03


@pytest.mark.parametrize(("count", "each"), [(64, 1), (64, 4), (256, 8), (400, 1)])
def test_so_many_independent_values(count: int, each: int) -> None:
    """The variance of the mean, estimated by it, is the true one; of independent values they are nearly all."""
    rng = np.random.default_rng([count, each])
    series = [np.repeat(rng.normal(size=count // each), each) + 0.3 * rng.normal(size=count) for _ in range(600)]
    estimated = np.mean([values.var(ddof=1) / independent_count(values) for values in series])
    assert estimated / np.var([values.mean() for values in series]) == pytest.approx(1, abs=0.25)
    if each == 1:
        assert np.median([independent_count(values) for values in series]) > 0.8 * count
    assert independent_count(np.ones(30)) == 30
    assert independent_count(np.arange(15.0)) == 15


def test_a_noisy_architecture_is_judged_by_its_own_differences() -> None:
    """By the paired ones if all have the same seeds, else by those of its own runs."""
    rng = np.random.default_rng(1)
    batches_S = rng.normal(0, 0.3, 6)
    losses = {f"calm{i}": 3 + batches_S + rng.normal(0, 0.001, 6) for i in range(20)}
    losses["wild"] = 3 + batches_S + rng.normal(0, 0.1, 6)
    pair = compare_losses({name: dict(enumerate(run_S)) for name, run_S in losses.items()}).pairs[19]
    expected = stats.ttest_rel(losses["calm0"], losses["wild"])
    assert (pair.a, pair.b) == ("calm0", "wild")
    assert pair.interval == pytest.approx(tuple(expected.confidence_interval(0.95)))
    losses = {name: run_S - batches_S for name, run_S in losses.items()} | {"fewer": rng.normal(3, 0.1, 3)}
    pairs = compare_losses({name: dict(enumerate(run_S)) for name, run_S in losses.items()}).pairs
    expected = stats.ttest_ind(losses["wild"], losses["fewer"], equal_var=False)
    assert pairs[-1].p == pytest.approx(expected.pvalue)


def covered(
    rng: np.random.Generator, noise_A: list[float], batches: float, seeds: int, windows: int = 1, by_window: float = 0.0
) -> tuple[bool, bool, bool]:
    """Of equal architectures with such noise and batches: whether the intervals of a difference from the first and of
    the last one's own loss hold the truth, and whether any verdict is false."""
    architectures, batches_S = len(noise_A), rng.normal(0, batches, seeds)
    true_AW = rng.normal(0, by_window, (architectures, windows)) if by_window else np.zeros((architectures, windows))
    own_AS = batches_S + rng.normal(size=(architectures, seeds)) * np.array(noise_A)[:, None]
    losses = {f"{a}": dict(enumerate(3 + own_AS[a][:, None] + true_AW[a])) for a in range(architectures)}
    compared = compare_losses(losses, draws=2)
    gap, loss = compared.pairs[0].interval, compared.architectures[-1].interval
    assert gap is not None
    assert loss is not None
    truth = 3 + float(true_AW[-1].mean())
    false = any(pair.verdict != NOT_DISTINGUISHABLE for pair in compared.pairs)
    return gap[0] <= 0 <= gap[1], loss[0] <= truth <= loss[1], false


def test_noise_that_the_batches_hide_is_recognised() -> None:
    """The first is four times as noisy as the others, the batches three times as noisy as these. Its differences were
    judged by the others' noise: 75 of 100 intervals held the truth."""
    rng = np.random.default_rng(11)
    held = [covered(rng, [0.04] + 7 * [0.01], 0.03, 5)[0] for _ in range(400)]
    assert np.mean(held) >= 0.92 - 3 * math.sqrt(0.08 * 0.92 / 400)


@pytest.mark.parametrize(("architectures", "seeds"), [(2, 2), (3, 3), (8, 3), (8, 5)])
def test_the_interval_of_a_loss_knows_that_seeds_share_batches(architectures: int, seeds: int) -> None:
    """Eight architectures are not eight independent estimates of the noise: of these with two seeds 88 of 100 intervals
    held the truth, with five 93. With two seeds it is still 91, since two cannot show how much they share."""
    rng = np.random.default_rng([12, architectures])
    held = [covered(rng, architectures * [0.01], 0.02, seeds)[1] for _ in range(600)]
    assert np.mean(held) >= 0.93 - 3 * math.sqrt(0.07 * 0.93 / 600)


def test_few_windows_are_no_certainty() -> None:
    """Four windows, in which architectures differ more than seeds do: 33 of 100 comparisons had a false verdict."""
    rng = np.random.default_rng(13)
    false = [covered(rng, 8 * [0.01], 0.0, 5, windows=4, by_window=0.05)[2] for _ in range(200)]
    assert np.mean(false) <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / 200)


def test_p_best_is_as_often_right_as_it_says() -> None:
    """Few seeds and windows, one noisier than the others: the mean P(best) of the leader is the share of leaders that
    are the best."""
    rng = np.random.default_rng(14)
    said, right = [], []
    for _ in range(400):
        true_A, noise_A = rng.normal(3, 0.02, 4), np.array([0.04, 0.01, 0.01, 0.01])
        apart_AW = rng.normal(0, 0.04, (4, 4))
        run_ASW = (true_A + rng.normal(0, 1, (5, 4)) * noise_A).T[:, :, None] + apart_AW[:, None]
        losses = {f"{a}": dict(enumerate(run_SW)) for a, run_SW in enumerate(run_ASW)}
        chances = [judged.p_best or 0.0 for judged in compare_losses(losses, draws=400).architectures]
        leader = int(np.argmax(chances))
        said.append(chances[leader])
        right.append(leader == true_A.argmin())
    assert abs(np.mean(said) - np.mean(right)) <= 3 * math.sqrt(0.25 / 400)


def test_the_level_of_a_noisy_architecture_is_shared_by_all_that_could_be_one() -> None:
    """Of five, each is tested at a fifth of five per cent."""
    for tail, noisy in ((0.02, False), (0.005, True)):
        ratio = stats.f.isf(tail, 3, 12)
        runs = {name: np.array([-1.5, -0.5, 0.5, 1.5]) * 0.6**0.5 for name in "abcd"}  # variance 1
        pooled = SeedNoise({**runs, "e": runs["a"] * ratio**0.5}, paired=False).pooled
        assert pooled is not None
        assert (pooled.freedom == 12) == noisy


def test_one_seed_says_nothing() -> None:
    losses = {"a": {0: [1.0, 2.0]}, "b": {0: [1.5, 2.5]}}
    compared = compare_losses(losses)
    assert compared.pairs == [Pair("a", "b", -0.5, None, None, NOT_DISTINGUISHABLE)]
    assert compared.noise is None
    assert [each.p_best for each in compared.architectures] == [None, None]


def test_identical_runs_are_not_distinguishable() -> None:
    runs = {0: [1.0, 2.0], 1: [1.1, 2.3], 2: [1.0, 2.1]}
    for names in ("ab", "abc"):
        compared = compare_losses(dict.fromkeys(names, runs))
        assert {pair.verdict for pair in compared.pairs} == {NOT_DISTINGUISHABLE}
    assert compared.verdict == "a, b and c are not distinguishable"


def test_losses_without_any_noise_differ_if_they_are_not_equal() -> None:
    compared = compare_losses({name: {seed: [level, level] for seed in range(2)} for name, level in
                               (("a", 1.0), ("b", 2.0), ("c", 1.0))})  # fmt: skip
    assert [pair.p for pair in compared.pairs] == [0, 1, 0]
    assert [pair.verdict for pair in compared.pairs] == ["a", NOT_DISTINGUISHABLE, "b"]
    assert [pair.corrected for pair in compared.pairs] == [(-1.0, -1.0), (0.0, 0.0), (1.0, 1.0)]


def test_corrected_intervals_say_what_the_verdict_says() -> None:
    """Of many noisy architectures some pairs' own intervals exclude 0 beside "not distinguishable"; corrected ones
    exclude it exactly where the correction finds a difference."""
    draw, alone = np.random.default_rng(3), 0
    for _ in range(40):
        level_A = np.array([0.0, 0.0, 0.0, 0.03, 0.06])
        losses = {str(a): {s: level + draw.normal(0, 0.01, 1) for s in range(4)} for a, level in enumerate(level_A)}
        compared = compare_losses(losses, draws=2)
        for pair in compared.pairs:
            assert pair.interval is not None
            assert pair.corrected is not None
            assert pair.corrected[0] <= pair.interval[0] < pair.interval[1] <= pair.corrected[1]
            excludes = pair.corrected[0] > 0 or pair.corrected[1] < 0
            below = abs(pair.difference) < (compared.noise or 0.0)
            assert (pair.verdict != NOT_DISTINGUISHABLE) == (excludes and not below)
            alone += pair.verdict == NOT_DISTINGUISHABLE and (pair.interval[0] > 0 or pair.interval[1] < 0)
    assert alone > 0


def test_no_difference_below_the_noise_is_called_one() -> None:
    rng = np.random.default_rng(1)
    half = {"a": dict(enumerate(rng.normal(2, 0.01, 400))), "b": dict(enumerate(rng.normal(2.006, 0.01, 400)))}
    (pair,) = compare_losses(half).pairs
    assert pair.p is not None
    assert pair.p < 1e-6
    assert pair.verdict == NOT_DISTINGUISHABLE


def test_what_diverges_loses_and_a_diverged_seed_is_counted() -> None:
    compared = compare_losses(
        {"good": {0: 1.0, 1: 1.01, 2: 1.0}, "bad": {0: 1.5, 1: math.nan, 2: 1.51}, "worst": {0: math.nan, 1: math.inf}}
    )
    assert [each.diverged for each in compared.architectures] == [0, 1, 2]
    assert [(p.a, p.b, p.verdict) for p in compared.pairs] == [
        ("good", "bad", "a"),
        ("good", "worst", "a"),
        ("bad", "worst", "a"),
    ]
    assert compared.architectures[2].p_best == 0
    assert compared.verdict == "good is best"


def test_the_best_of_the_seeds_that_did_not_diverge_is_not_simply_the_best() -> None:
    """Four of five diverged: whoever trains it once will most probably see that, and the verdict did not say it."""
    survivor = {0: 1.0} | dict.fromkeys(range(1, 5), math.nan)
    steady = {"b": dict(enumerate([1.5, 1.51, 1.5, 1.49, 1.5])), "c": dict(enumerate([1.6, 1.61, 1.6, 1.59, 1.6]))}
    assert compare_losses({"a": survivor, **steady}).verdict == "a is best; a diverged with 4 of 5 seeds"
    assert compare_losses({**steady, "d": dict.fromkeys(range(5), math.nan)}).verdict == "b is best"


def test_two_that_are_distinguishable_are_not_said_to_be_equal() -> None:
    """The noisy leader is not distinguishable from either, but they are from each other."""
    rng = np.random.default_rng(3)
    calm = {name: dict(enumerate(mean + rng.normal(0, 0.001, 5))) for name, mean in (("b", 1.0), ("c", 1.05))}
    noisy = {"a": dict(enumerate([0.5, 1.4, 0.6, 1.5, 0.7]))}
    compared = compare_losses({**noisy, **calm, "d": dict(enumerate(9 + rng.normal(0, 0.001, 5)))})
    assert next(pair.verdict for pair in compared.pairs if (pair.a, pair.b) == ("b", "c")) == "a"
    assert compared.verdict == "b and c are not distinguishable from a; the other is worse"


def test_a_noisy_architecture_does_not_hide_the_others() -> None:
    rng = np.random.default_rng(3)
    calm = {name: dict(enumerate(rng.normal(mean, 0.01, 5))) for name, mean in (("a", 1.0), ("b", 1.05), ("c", 1.05))}
    wild = {"wild": dict(enumerate(rng.normal(1.03, 1.0, 5)))}
    compared = compare_losses({**calm, **wild})
    assert compared.pairs[0].verdict == "a"
    assert compared.noise == pytest.approx(0.01, rel=0.6)
    assert all(pair.verdict == NOT_DISTINGUISHABLE for pair in compared.pairs if pair.b == "wild")


def test_p_best_follows_the_interval() -> None:
    compared = compare_losses({"a": {0: 1.0, 1: 1.02, 2: 1.01}, "b": {0: 1.01, 1: 1.03, 2: 1.02}})
    a, b = (each.p_best for each in compared.architectures)
    assert a is not None
    assert b is not None
    assert a + b == pytest.approx(1)
    assert 0.6 < a < 0.95


@pytest.mark.parametrize("losses", [{}, {"a": {}}, {"a": {0: [1.0, 2.0]}, "b": {0: [1.0]}}])
def test_what_cannot_be_compared_is_said(losses: dict[str, dict[int, list[float]]]) -> None:
    with pytest.raises(UserError):
        compare_losses(losses)


def test_the_noise_of_several_trainings_is_pooled() -> None:
    # Variances 2 and 8 with one degree of freedom each; a single run and a diverged one say nothing.
    assert seed_noise([[1.0, 3.0], [1.0, 5.0], [7.0], [2.0, float("inf")]]) == pytest.approx(5**0.5)
    assert seed_noise([[1.0], [2.0]]) is None
    assert seed_noise([]) is None
