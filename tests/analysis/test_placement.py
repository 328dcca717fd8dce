"""Placement analysis recovers planted patterns, and random placement is not significant."""

from __future__ import annotations

import json
from itertools import product
from math import comb

import numpy as np
import pytest

from plait.analysis.placement import Placement, judge_placement, letters_of
from plait.core.errors import UserError

PAR_32 = "sfff" * 6 + "f" * 8


def read(*patterns: str) -> Placement:
    return judge_placement(patterns, {"f"})


def scattered(n: int, count: int, within: int, seeds: int, seed: int) -> list[str]:
    """Attention anywhere in the first `within` layers."""
    stream = np.random.default_rng(seed)
    places = [stream.choice(within, count, replace=False) for _ in range(seeds)]
    return ["".join("s" if layer in chosen else "f" for layer in range(n)) for chosen in places]


def test_copies_of_par_give_par_back() -> None:
    found = read(*[PAR_32] * 6)
    assert found.p == pytest.approx(32 / 6)
    least, most = found.p_interval
    assert least < found.p < most, "six searches that agree do not know the mean exactly"
    assert found.counts == (6,) * 6
    assert [(third.layers, third.mean, third.std) for third in found.thirds] == [(10, 3, 0), (11, 3, 0), (11, 0, 0)]
    assert found.fitted is not None
    assert found.fitted.chosen.pattern == PAR_32
    assert found.fitted.chosen.spec == "rule:par(n=32,p=5.33)"  # within the first two thirds, the default
    assert (found.fitted.agreement, found.fitted.validation, found.fitted.skill) == (1, 1, 1)
    assert found.fitted.random == pytest.approx(1 - 2 * (6 / 32) * (26 / 32))
    assert found.early is not None
    assert (found.early.value, found.early.high, found.early.concentrated) == (1, 1, True)
    assert 0.85 < found.early.low < 1
    assert found.says_something
    assert "concentrates in the first two thirds: yes, share 1.00" in found.statement
    assert "100 % of the layers" in found.statement
    assert "the pattern says something" in found.statement


@pytest.mark.parametrize("pattern", [*scattered(24, 6, 24, seeds=1, seed=3), "f" * 12 + "s" * 6 + "f" * 6])
def test_the_share_expected_by_chance_is_exact(pattern: str) -> None:
    found = read(pattern, pattern)
    assert found.early is not None
    early = pattern[:16].count("s")
    ways = [comb(16, k) * comb(8, 6 - k) / comb(24, 6) for k in range(7)]
    pairs = [ways[a] * ways[b] for a, b in product(range(7), repeat=2) if a + b >= 2 * early]
    assert found.early.value == early / 6
    assert found.early.chance == pytest.approx(sum(pairs))
    assert found.early.random == 16 / 24


def test_random_places_are_told_as_such() -> None:
    told = [read(*scattered(32, 6, 32, seeds=6, seed=seed)) for seed in range(20)]
    assert sum(one.says_something for one in told) <= 4  # 1 expected
    assert sum(one.early.concentrated for one in told if one.early) <= 4
    unseen = np.mean(
        [one.fitted.validation - one.fitted.random for one in told if one.fitted and one.fitted.validation]
    )
    assert abs(unseen) < 0.02, "on architectures that it has not seen the pattern is no better than chance"
    assert np.mean([one.chance for one in told if one.chance]) == pytest.approx(0.5, abs=0.2)
    nothing = next(one for one in told if not one.says_something)
    assert "the pattern says nothing" in nothing.statement


def test_what_is_early_but_uneven_is_concentrated() -> None:
    found = read(*scattered(24, 6, 16, seeds=6, seed=0))
    assert found.early is not None
    assert found.early.concentrated
    assert found.thirds[2].mean == 0
    late = read(*(pattern[::-1] for pattern in scattered(24, 6, 16, seeds=6, seed=0)))
    assert late.early is not None
    assert not late.early.concentrated
    assert not late.says_something


def test_spread_over_the_seeds() -> None:
    found = read("ssffff", "sfffff", "sfffff", "ssfsff")
    first, second, last = found.thirds
    assert (first.mean, second.mean, last.mean) == (1.5, 0.25, 0)
    assert first.std == pytest.approx(np.std([2, 1, 1, 2], ddof=1))
    # Wilson: each end is where 3 of 4 layers are just as far away as Student's t with 3 degrees of freedom lets them.
    for end in (first.low / 2, first.high / 2):
        error = np.std([1, 0.5, 0.5, 1], ddof=1) / 2 * np.sqrt(end * (1 - end) / (0.75 * 0.25))
        assert abs(0.75 - end) == pytest.approx(3.182446 * error, rel=1e-5)
    assert first.low < 1.5 < first.high < 2, "there are no more layers than two"
    assert last.low == 0
    assert 0 < last.high < 2, "none in four searches is not none for ever"
    assert found.p == pytest.approx(6 / 1.75)
    for layers_per_block in found.p_interval:
        end, share = 1 / layers_per_block, 1.75 / 6
        error = np.std([2, 1, 1, 3], ddof=1) / 6 / 2 * np.sqrt(end * (1 - end) / (share * (1 - share)))
        assert abs(share - end) == pytest.approx(3.182446 * error, rel=1e-5)


def test_intervals_cover_the_truth_as_often_as_they_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plait.analysis.placement.chance", lambda found_SL: 1.0)  # takes its time, and is not asked
    told = [read(*scattered(24, 6, 24, seeds=4, seed=seed)) for seed in range(100)]
    shares = [one.early for one in told if one.early and one.early.low is not None and one.early.high is not None]
    assert 0.88 <= np.mean([one.low <= 2 / 3 <= one.high for one in shares]) <= 0.99  # type: ignore[operator]
    thirds = [one.thirds[0] for one in told]
    assert 0.88 <= np.mean([one.low <= 2 <= one.high for one in thirds]) <= 0.99  # type: ignore[operator]


def test_one_architecture_has_no_spread() -> None:
    found = read("sfsfff")
    first = found.thirds[0]
    assert first.std is first.low is first.high is None
    assert found.p_interval == (None, None)
    assert found.early is not None
    assert found.early.low is found.early.high is None
    assert "share 1.00 where" in found.statement
    assert found.fitted is not None
    assert found.fitted.validation is None
    assert "left out" not in found.statement


def test_kinds_are_counted_apart() -> None:
    names = ["attn", "mlp", "none", "mamba", "swiglu", "identity"]
    found = judge_placement([names, ["mamba", *names[1:]]], channel={"mlp", "swiglu", "identity"})
    assert {(third.kind, third.third): third.mean for third in found.thirds if third.mean} == {
        ("all", "first"): 1,
        ("all", "second"): 1,
        ("attn", "first"): 0.5,
        ("mamba", "first"): 0.5,
        ("mamba", "second"): 1,
    }
    assert found.counts == (2, 2)
    assert found.patterns == ("al·ms·", "ml·ms·")


def test_letters() -> None:
    layers = [["xl-attn", "mlp", "none"]]
    assert letters_of(layers, {"mlp"}) == {"xl-attn": "s", "mlp": "f", "none": "·", "identity": "·"}
    many = letters_of([["sss", "ss", "s", "f"]], {"f"})
    assert len(set(many.values()) - {"·"}) == 4
    assert many["f"] == "f"
    names = [f"mixer{number}" for number in range(60)]
    assert len(set(letters_of([names], ()).values()) - {"·"}) == 60  # more than the alphabet has


def test_a_rule_for_nothing_is_not_made_up() -> None:
    found = judge_placement([["f", "f", "none", "f"], ["f"] * 4], channel={"f"})
    assert (found.p, found.early, found.fitted, found.chance) == (None, None, None, None)
    assert "there is no pattern to fit" in found.statement
    json.dumps(found.as_dict(), allow_nan=False)


def test_the_document_is_plain_json() -> None:
    found = read("sfff", "ffff", "ffsf")
    document = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert document["fitted"] == document["fits"][0]["spec"]
    assert document["statement"] == found.statement
    assert document["p_interval"][1] > 3 * document["p"], "hardly any is possible"


@pytest.mark.parametrize(
    ("patterns", "message"),
    [([], "no architectures"), (["sfff", "sff"], r"\[3, 4\] layers"), (["sf"], "2 layers cannot be cut")],
)
def test_what_cannot_be_compared_is_refused(patterns: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(*patterns)
