"""The exponent of a power law, and how it is told from a sum of powers."""

from __future__ import annotations

import numpy as np
import pytest

from plait.device.lengths import fit_exponent, flop_growth, upper_half
from plait.mixers.table import load

LENGTHS = (128, 256, 512, 1024, 2048)


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_a_power_law_is_found_exactly(power: float) -> None:
    found = fit_exponent(LENGTHS, [3e-5 * n**power for n in LENGTHS])
    assert found.value == pytest.approx(power, abs=1e-9)
    assert found.low == pytest.approx(found.high, abs=1e-6)


def test_only_the_upper_half_counts() -> None:
    """A fixed cost at short lengths does not bend the exponent."""
    assert [LENGTHS[:count][upper_half(LENGTHS[:count])] for count in (2, 3, 4, 5)] == [
        (128, 256),
        (256, 512),
        (256, 512, 1024),
        (512, 1024, 2048),
    ]
    flat_then_linear = [1.0, 1.0, 1.0, 2.0, 4.0]
    assert fit_exponent(LENGTHS, flat_then_linear).value == pytest.approx(1.0)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng, covered = np.random.default_rng(0), 0
    for _ in range(400):
        noisy = [n**1.3 * np.exp(0.05 * rng.standard_normal()) for n in LENGTHS]
        found = fit_exponent(LENGTHS, noisy, [0.05] * len(LENGTHS))
        covered += found.low <= 1.3 <= found.high
    assert 0.94 <= covered / 400 <= 0.995


def test_what_lies_off_the_line_widens_the_interval() -> None:
    calm = fit_exponent(LENGTHS, [1, 1, 1, 2.0, 4.0], [0.001] * 5)
    bent = fit_exponent(LENGTHS, [1, 1, 1, 2.5, 4.0], [0.001] * 5)
    assert bent.high - bent.low > 10 * (calm.high - calm.low)


@pytest.mark.parametrize(
    ("mixer", "whole", "mixing"),
    [("attn", (1.3, 1.9), 2.0), ("xl-attn", (1.3, 1.9), 2.0), ("mlp", (1.0, 1.0), None), ("gla", (1.0, 1.0), 1.0)],
)
def test_exact_flops_of_blocks(mixer: str, whole: tuple[float, float], mixing: float | None) -> None:
    found = flop_growth(256, load(mixer)(), LENGTHS)
    assert found.whole is not None
    assert whole[0] - 1e-9 <= found.whole <= whole[1] + 1e-9
    assert found.mixing == (None if mixing is None else pytest.approx(mixing))


def test_long_sequences_show_the_square() -> None:
    long = flop_growth(256, load("attn")(), [1 << i for i in range(18, 23)]).whole
    assert long is not None
    assert 1.99 < long < 2
    windowed = flop_growth(256, load("attn")(window=64), [1 << i for i in range(18, 23)])
    assert windowed.mixing == pytest.approx(1.0)


def test_a_decoding_step_grows_linearly_where_it_looks_back() -> None:
    assert flop_growth(64, load("attn")(), [1 << i for i in range(14, 20)], mode="decode").mixing == pytest.approx(
        1, abs=1e-3
    )
    assert flop_growth(64, load("gla")(), LENGTHS, mode="decode").whole == pytest.approx(0)
    assert flop_growth(64, load("identity")(), LENGTHS).whole is None
