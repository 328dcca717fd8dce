"""Shares of choices: noise that is always the same, and a softmax that becomes a choice as it cools."""

from __future__ import annotations

import pytest
import torch

from plait.supernet.mixture import mixture, noise

LOGITS_LK = torch.tensor([[0.0, 1.0, -1.0], [0.5, 0.0, -torch.inf]])


def test_noise_is_of_its_step_and_seed_alone() -> None:
    assert torch.equal(noise(1, 2, (3, 4)), noise(1, 2, (3, 4)))
    assert not torch.equal(noise(1, 2, (3, 4)), noise(1, 3, (3, 4)))
    assert not torch.equal(noise(1, 2, (3, 4)), noise(2, 2, (3, 4)))


def test_choices_are_drawn_as_often_as_their_softmax_says() -> None:
    drawn = torch.stack([mixture(LOGITS_LK, noise(0, n, (2, 3)), 0.1, "path").argmax(dim=1) for n in range(4000)])
    for layer in range(2):
        share = torch.bincount(drawn[:, layer], minlength=3) / len(drawn)
        torch.testing.assert_close(share, LOGITS_LK[layer].softmax(0), atol=0.03, rtol=0)


@pytest.mark.parametrize("sampling", ["soft", "straight-through", "path"])
def test_shares_sum_to_one_and_what_is_missing_has_none(sampling: str) -> None:
    weights_LK = mixture(LOGITS_LK, noise(0, 0, (2, 3)), 1.0, sampling)
    torch.testing.assert_close(weights_LK.sum(dim=1), torch.ones(2))
    assert weights_LK[1, 2] == 0


def test_without_heat_the_mixture_is_the_argmax() -> None:
    drawn_LK = noise(3, 1, (2, 3))
    best = (LOGITS_LK + drawn_LK).argmax(dim=1)
    distance = [
        float((mixture(LOGITS_LK, drawn_LK, t, "soft") - torch.nn.functional.one_hot(best, 3)).abs().max())
        for t in (1.0, 0.3, 0.1, 0.01)
    ]
    assert distance == sorted(distance, reverse=True)
    assert distance[-1] < 1e-6


def test_one_choice_has_the_gradient_of_the_soft_mixture() -> None:
    weight_LK, grads = torch.tensor([[1.0, -2.0, 3.0], [0.5, 1.5, 0.0]]), []
    for sampling in ("soft", "straight-through"):
        logits_LK = LOGITS_LK.clone().requires_grad_()
        out_LK = mixture(logits_LK, noise(0, 0, (2, 3)), 0.7, sampling)
        (out_LK * weight_LK).sum().backward()
        grads.append(logits_LK.grad)
    assert set(out_LK.detach().flatten().tolist()) == {0.0, 1.0}  # exactly
    torch.testing.assert_close(grads[0], grads[1])
