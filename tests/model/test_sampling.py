"""Cuts keep what they say, draws follow the probabilities, and a row is chosen from its own numbers."""

from __future__ import annotations

import pytest
import torch

from plait.core.errors import UserError
from plait.model.generation import GREEDY, Sampling, choose, kept_probabilities

#: Probabilities 0.4, 0.3, 0.2, 0.1 of the tokens 2, 0, 3, 1.
SCORES = torch.tensor([[0.3, 0.1, 0.4, 0.2]]).log()


def kept(sampling: Sampling) -> dict[int, float]:
    p_BV, order_BV = kept_probabilities(SCORES, sampling)
    total = p_BV.sum().item()
    pairs = zip(order_BV[0].tolist(), p_BV[0].tolist(), strict=True)
    return {token: round(p / total, 6) for token, p in pairs if p}


def test_greedy_takes_the_likeliest():
    assert choose(SCORES, GREEDY, None).tolist() == [2]


def test_cuts():
    assert kept(Sampling()) == {2: 0.4, 0: 0.3, 3: 0.2, 1: 0.1}
    assert kept(Sampling(top_k=2)) == {2: round(4 / 7, 6), 0: round(3 / 7, 6)}
    assert kept(Sampling(top_k=9)) == kept(Sampling())
    assert set(kept(Sampling(top_p=0.39))) == {2}  # never empty
    assert set(kept(Sampling(top_p=0.41))) == {2, 0}
    assert set(kept(Sampling(top_p=0.69))) == {2, 0}
    # Top-p counts within what top-k left: 0.4/0.7 of the first is 0.57.
    assert set(kept(Sampling(top_k=2, top_p=0.5))) == {2}
    assert set(kept(Sampling(top_p=0.5))) == {2, 0}


def test_temperature_sharpens():
    assert kept(Sampling(temperature=0.5))[2] == pytest.approx(0.16 / 0.30, abs=1e-5)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.7, top_k=3, top_p=0.9)])
def test_draws_follow_the_probabilities(sampling):
    n = 4000
    draws_B = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    tokens = choose(SCORES.expand(n, 4), sampling, draws_B)
    expected = kept(sampling)
    for token in range(4):
        assert (tokens == token).double().mean().item() == pytest.approx(expected.get(token, 0.0), abs=2 / n)


def test_the_largest_draw_never_takes_what_was_cut():
    draws_B = torch.tensor([1 - 2**-53], dtype=torch.float64)
    assert choose(SCORES, Sampling(top_k=2), draws_B).tolist() == [0]


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_k": -1}, {"top_p": 0.0}, {"top_p": 1.1}])
def test_senseless_settings_are_refused(wrong):
    with pytest.raises(UserError, match=next(iter(wrong))):
        Sampling(**wrong)
