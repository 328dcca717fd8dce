"""The fitted pattern: a planted one is recovered, and its text is a valid spec."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from plait.analysis.pareto import Mask
from plait.analysis.placement_fit import Fit, chance, fit_patterns, par_candidates
from plait.spec import parse
from plait.spec.dialects import par_pattern, sandwich_pattern


def mask(*patterns: str) -> Mask:
    return np.array([[letter == "s" for letter in pattern] for pattern in patterns])


def fits(*patterns: str) -> dict[str, Fit]:
    return {fit.name: fit for fit in fit_patterns(mask(*patterns))}


@pytest.mark.parametrize("within", [0.25, 0.5, 2 / 3, 0.9, 1])
@pytest.mark.parametrize(("n", "p"), [(24, 4), (32, 16), (12, 6), (36, 7.2), (7, 7), (33, 4.125)])
def test_a_planted_rule_is_found_and_spelled(n: int, p: float, within: float) -> None:
    planted = par_pattern(n, p, within)
    found = fits(planted, planted)["fitted"]
    assert found.chosen.pattern == planted
    assert found.agreement == 1
    read_back = parse(f"rule[s=attn,f=mlp]:{found.chosen.spec.removeprefix('rule:')}").layers
    assert "".join("s" if layer.name == "attn" else "f" for layer in read_back) == planted


def test_the_shortest_spelling() -> None:
    assert fits("sff" * 4 + "f" * 12)["fitted"].chosen.spec == "rule:par(n=24,p=6,within=0.5)"
    assert fits("sff" * 5 + "f" * 9)["fitted"].chosen.spec == "rule:par(n=24,p=4.8)"
    assert fits("s" * 6)["fitted"].chosen.spec == "rule:par(n=6,p=1,within=1)"


def test_all_patterns_with_so_many_blocks_are_candidates() -> None:
    patterns = {one.pattern for one in par_candidates(mask("sssfffffffff"))}
    even = {"".join("s" if at in (0, gap, 2 * gap) else "f" for at in range(12)) for gap in range(1, 6)}
    assert patterns == even
    assert par_candidates(mask("sssfffffffff"))[0].pattern == par_pattern(12, 4)  # two thirds is preferred


@pytest.mark.parametrize(("patterns", "blocks"), [(("ssff", "sfff"), 1), (("ssff", "sssf"), 2), (("ssff", "ssss"), 3)])
def test_a_half_block_goes_down(patterns: tuple[str, ...], blocks: int) -> None:
    assert fits(*patterns)["fitted"].chosen.pattern.count("s") == blocks


def test_random_agreement_is_the_mean_over_all_placements() -> None:
    found = fits("sffsff", "ssffff", "ssssff")["interleaved"]
    places = [[at in chosen for at in range(6)] for chosen in combinations(range(6), 3)]
    by_hand = np.mean([np.array(place) == mask("sffsff", "ssffff", "ssssff") for place in places])
    assert found.random == pytest.approx(by_hand)
    assert found.agreement == 0.5  # three layers of six in each


def test_rivals() -> None:
    found = fits(*[sandwich_pattern(3, 12)] * 2)
    assert found["sandwich"].chosen.spec == "rule:sandwich(k=3,n=12)"
    assert found["sandwich"].agreement == 1
    assert found["published"].chosen.spec == "rule:par(n=24,p=5)"
    assert found["published"].chosen.pattern == "sff" * 5 + "f" * 9
    assert fits("sf" * 6)["interleaved"].agreement == 1
    odd = fits("sfsfsfs")
    assert "sandwich" not in odd
    assert odd["interleaved"].agreement == 1
    assert parse(odd["interleaved"].chosen.spec) == parse("par:sfsfsfs")


def test_left_out_architectures_are_not_seen_by_the_fit() -> None:
    early, late = "ss" + "f" * 10, "s" + "f" * 10 + "s"
    found = fits(early, late)["fitted"]
    assert found.agreement == pytest.approx(11 / 12)  # one of the two is fitted
    assert found.validation == pytest.approx(10 / 12)  # each is judged by the other's pattern


def test_chance() -> None:
    assert chance(mask(*["sff" * 4 + "f" * 12] * 3), draws=200) == pytest.approx(1 / 201)
    assert chance(mask("s" * 8), draws=50) == 1
    # One block: the pattern can only say "the first layer", and one of four draws agrees.
    assert chance(mask("sfff"), draws=2000) == pytest.approx(0.25, abs=0.04)
