"""Chains: the walk is the sequential one, the entropy is the truth."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.data.builtin import BURN_IN, BYTE, Chain, byte_shares


def two_states(stay: int) -> Chain:
    """Stays with probability stay/256, else changes over."""
    rows = [np.repeat([state, 1 - state], [stay, BYTE - stay]) for state in (0, 1)]
    return Chain(np.array(rows), np.array([0, 1]))


def random_chain(contexts: int, seed: int) -> Chain:
    return Chain(np.random.default_rng(seed).integers(contexts, size=(contexts, BYTE)), np.arange(contexts))


@given(contexts=st.integers(1, 40), count=st.integers(1, 5000), seed=st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_the_walk_is_the_sequential_one(contexts: int, count: int, seed: int) -> None:
    chain = random_chain(contexts, seed)
    drawn = chain.sample(count, np.random.default_rng(seed))
    context, walked = 0, []
    for byte in np.random.default_rng(seed).bytes(BURN_IN + count):
        context = chain.next_CU[context, byte]
        walked.append(chain.token_C[context])
    assert np.array_equal(drawn, walked[BURN_IN:])


def test_chains_that_never_meet_are_walked_correctly_too() -> None:
    """Both states step by the same byte alike, so a wrong guess is never forgotten: the worst case."""
    chain = two_states(200)
    flips = np.frombuffer(np.random.default_rng(1).bytes(BURN_IN + 3000), dtype=np.uint8) >= 200
    assert np.array_equal(chain.sample(3000, np.random.default_rng(1)), (np.cumsum(flips) % 2)[BURN_IN:])


@pytest.mark.parametrize("stay", [1, 100, 128, 255])
def test_entropy_of_two_states(stay: int) -> None:
    p = stay / BYTE
    assert two_states(stay).entropy == pytest.approx(-p * np.log(p) - (1 - p) * np.log(1 - p), rel=1e-12)


def test_stationary_distribution_is_what_a_walk_visits() -> None:
    chain = random_chain(12, 3)
    assert np.allclose(chain.stationary_C @ chain.transitions_CC, chain.stationary_C, atol=1e-14)
    visits = np.bincount(chain.sample(400_000, np.random.default_rng(0)), minlength=12) / 400_000
    assert np.abs(visits - chain.stationary_C).max() < 0.004


@given(st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=64))
def test_shares_are_bytes(weights: list[float]) -> None:
    shares = byte_shares(np.array(weights))
    assert shares.sum() == BYTE
    assert shares.min() >= 1
