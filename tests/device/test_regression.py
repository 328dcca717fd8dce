"""A roofline and a Gaussian process."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from plait.device.features import Features, of_layer
from plait.device.quantities import Setting
from plait.device.regression import Surface, cholesky, forward, nonnegative_least_squares
from plait.mixers.table import load


def test_least_squares_without_negative_weights() -> None:
    rng = np.random.default_rng(0)
    a = rng.random((40, 4))
    assert nonnegative_least_squares(a, a @ [1.0, 0.0, 2.0, 3.0]) == pytest.approx([1, 0, 2, 3], abs=1e-9)
    clipped = nonnegative_least_squares(a, a @ [1.0, -0.5, 2.0, 3.0])
    assert clipped.min() == 0
    # No small step that keeps to the rule does better.
    error = np.linalg.norm(a @ clipped - a @ [1.0, -0.5, 2.0, 3.0])
    for step in rng.normal(0, 0.05, (200, 4)):
        assert np.linalg.norm(a @ np.maximum(clipped + step, 0) - a @ [1.0, -0.5, 2.0, 3.0]) >= error - 1e-12


def test_triangles() -> None:
    rng = np.random.default_rng(0)
    matrix = rng.normal(size=(20, 30))
    covariance = matrix @ matrix.T
    factor = cholesky(covariance)
    assert factor == pytest.approx(np.linalg.cholesky(covariance))
    right = rng.normal(size=(20, 5))
    assert factor @ forward(factor, right) == pytest.approx(right)


def layer(d: int, inner: int) -> Features:
    return of_layer(d, load("mlp")(inner=inner), "rms", Setting())


def seconds(one: Features) -> float:
    """Arithmetic, a fixed cost, and a processor that likes some widths better than others."""
    return (1e-11 * one.terms[1] + 2e-5) * (1 + 0.15 * np.sin(2 * one.place["d"]) * np.cos(one.place["inner"]))


def points(count: int, seed: int) -> list[Features]:
    rng = np.random.default_rng(seed)
    return [layer(int(64 * rng.integers(2, 16)), int(64 * rng.integers(2, 63))) for _ in range(count)]


def test_it_predicts_what_it_has_not_seen() -> None:
    known, asked = points(60, 1), points(200, 2)
    rng = np.random.default_rng(3)
    noisy = np.array([seconds(one) for one in known]) * np.exp(rng.normal(0, 0.01, 60))
    surface = Surface(known, noisy, np.full(60, 0.01))
    mean, deviation = surface.predict(surface.inputs(asked))
    off = mean / [seconds(one) for one in asked] - 1
    assert np.median(np.abs(off)) < 0.02
    assert np.quantile(np.abs(off), 0.95) < 0.08
    assert np.mean(np.abs(off) < 1.96 * deviation) > 0.85


def test_it_is_less_sure_far_away_but_not_lost() -> None:
    near = points(30, 1)
    surface = Surface(near, np.array([seconds(one) for one in near]), np.full(30, 0.01))
    far = layer(8192, 32768)
    mean, deviation = surface.predict(surface.inputs([near[0], far]))
    assert deviation[1] > 3 * deviation[0]
    assert mean[1] == pytest.approx(1e-11 * far.terms[1], rel=0.4)


def test_points_that_scatter_more_than_they_said_make_it_less_sure() -> None:
    """Ten of them, said to be known to 1 %, scatter by 40 %: what is likely of so few is stretched, and its intervals
    hold most of what comes next."""
    held = []
    for seed in range(12):
        rng, known, asked = np.random.default_rng(seed), points(10, seed), points(40, 100 + seed)
        noisy = np.array([seconds(one) for one in known]) * np.exp(rng.normal(0, 0.4, 10))
        surface = Surface(known, noisy, np.full(10, 0.01), tune=False)
        mean, deviation = surface.predict(surface.inputs(asked))
        truth = np.array([seconds(one) for one in asked])
        held.append(np.mean(np.abs(np.log(mean / truth)) < 1.96 * deviation))
    assert np.mean(held) > 0.9


def test_options_that_are_no_numbers_are_told_apart_where_measured() -> None:
    def of(act: str, d: int) -> Features:
        return of_layer(d, load("mlp")(act=act), "rms", Setting())

    known = [of(act, d) for act in ("gelu", "relu") for d in (128, 256, 512, 1024)]
    values = np.array([1e-11 * one.terms[1] * (1.3 if one.names["act"] == "gelu" else 1) for one in known])
    surface = Surface(known, values, np.full(8, 0.01))
    (gelu, relu, silu), deviation = surface.predict(surface.inputs([of(a, 384) for a in ("gelu", "relu", "silu")]))
    assert gelu / relu == pytest.approx(1.3, rel=0.1)
    assert relu * 0.95 < silu < gelu * 1.05
    assert deviation[2] > deviation[0]


def test_a_new_measurement_is_no_surer_than_measurements_repeat_and_far_away_than_the_weights_are() -> None:
    points = [of_layer(d, load("mlp")(inner=4 * d), "rms", Setting()) for d in (64, 96, 128, 192, 256, 384)]
    values = np.array([1e-5 + 1e-11 * point.terms[1] for point in points])
    surface = Surface(points, values, np.full(len(points), 0.01))
    shape = surface.shape
    far = [of_layer(8192, load("mlp")(inner=4 * 8192), "rms", Setting(seq=16))]
    alone = surface._stretch * np.hypot(shape.scale, shape.noise)  # what an unknown deviation would add
    assert surface.predict(surface.inputs(far))[1][0] > 1.02 * alone
    surface.shape = replace(shape, noise=0.5)
    assert (surface.predict(surface.inputs(points))[1] > 0.5).all()
