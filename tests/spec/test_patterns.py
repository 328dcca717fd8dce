"""Placement patterns against the published patterns."""

from __future__ import annotations

import pytest

from plait.spec import parse
from plait.spec.dialects import par_pattern, sandwich_pattern, stripe_blocks


@pytest.mark.parametrize(("n", "published"), [(32, "sfff" * 6 + "f" * 8), (24, "sff" * 5 + "f" * 9)])
def test_par_rule_gives_the_published_patterns(n: int, published: str) -> None:
    assert par_pattern(n) == published


def test_par_rule_at_36_is_not_what_the_paper_trained() -> None:
    assert par_pattern(36) == "sff" * 7 + "f" * 15
    published = "sfff" * 7 + "f" * 8
    assert published.rindex("s") + 1 == 25 > 2 * 36 // 3  # outside the first two thirds: against the first rule
    trained = parse("par:(sfff)x7 (f)x8").layers
    assert ["s" if layer.name == "xl-attn" else "f" for layer in trained] == list(published)


@pytest.mark.parametrize("p", [1.6, 2, 3.3, 4, 5, 20, 1e9])
def test_par_rule_holds_for_every_depth(p: float) -> None:
    for n in range(3, 200):
        pattern = par_pattern(n, p)
        at = [i for i, block in enumerate(pattern) if block == "s"]
        assert len(pattern) == n
        assert len(at) == 1 or abs(len(at) - n / p) <= 0.5
        assert at[-1] < 2 * n / 3
        assert at == list(range(0, at[-1] + 1, at[1] if len(at) > 1 else 1))


@pytest.mark.parametrize(
    ("n", "p", "within", "pattern"),
    [
        (24, 4, 0.5, "sf" * 6 + "f" * 12),
        (24, 6, 0.5, "sff" * 4 + "f" * 12),
        (12, 4, 1, "sffffsffffsf"),
        (10, 5, 0.7, "sfffffsfff"),  # 0.7 of 10 is 7, not the 6.99… of its float
        (10, 5, 0.69, "sffffsffff"),
        (4, 4, 0.01, "sfff"),  # room for one at least
        (8, 1, 1, "s" * 8),
    ],
)
def test_within_says_where_attention_may_stand(n: int, p: float, within: float, pattern: str) -> None:
    assert par_pattern(n, p, within) == pattern
    assert parse(f"rule:par(n={n},p={p},within={within})") == parse(f"par:{pattern}")


@pytest.mark.parametrize("p", [2, 5])
def test_two_thirds_is_what_is_meant_without_within(p: float) -> None:
    for n in range(1, 200):
        assert par_pattern(n, p) == par_pattern(n, p, 2 / 3) == par_pattern(n, p, 0.66666)


def test_a_half_is_rounded_down() -> None:
    assert par_pattern(30, 4).count("s") == 7


@pytest.mark.parametrize(
    ("k", "n", "published"),
    [
        (6, 16, "(s)x6 (sf)x10 (f)x6"),
        (6, 18, "(s)x6 (sf)x12 (f)x6"),
        (5, 12, "(s)x5 (sf)x7 (f)x5"),
        (3, 12, "(s)x3 (sf)x9 (f)x3"),
    ],
)
def test_sandwich(k: int, n: int, published: str) -> None:
    assert parse(f"rule:sandwich(k={k},n={n})") == parse(f"par:{published}")
    assert len(sandwich_pattern(k, n)) == 2 * n


def test_stripe_is_cut_off() -> None:
    assert "".join(stripe_blocks([(1, "a"), (3, "h")], 6)) == "ahhhah"
    assert "".join(stripe_blocks([(9, "a"), (3, "h")], 4)) == "aaaa"
    assert parse("rule:stripe(1A:3H,n=24)") == parse("mad:(1A:3H)x6")
