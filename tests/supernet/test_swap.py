"""Swapping choices gives the gradient of the expected loss; layers come in turn; steps are even."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from plait.supernet.mixture import EvenDescent, layers_in_turn, swap_gradient


@pytest.mark.parametrize("priced", [False, True])
def test_on_average_over_draws_it_is_the_gradient_of_the_expected_loss(priced: bool) -> None:
    """Every path of three layers, each as often as it is drawn, against automatic differentiation."""
    stream = torch.Generator().manual_seed(3)
    logits_LK = torch.randn(3, 3, generator=stream, dtype=torch.float64)
    logits_LK[1, 2] = -torch.inf  # a layer with fewer choices
    losses = torch.rand(3, 3, 3, generator=stream, dtype=torch.float64)
    prices_LK = priced * torch.rand(3, 3, generator=stream, dtype=torch.float64)

    leaf_LK = logits_LK.clone().requires_grad_()
    p_LK = leaf_LK.softmax(dim=1)
    expected = torch.einsum("abc,a,b,c->", losses, *p_LK) + (p_LK * prices_LK).sum()
    (wanted_LK,) = torch.autograd.grad(expected, leaf_LK)

    found_LK = torch.zeros_like(logits_LK)
    for path in itertools.product(range(3), range(2), range(3)):
        share = torch.stack([p_LK[at, k] for at, k in enumerate(path)]).prod().detach()
        own, gradient_LK = swap_gradient(path, [0, 1, 2], logits_LK, lambda tried: losses[tuple(tried)], prices_LK)
        assert own == losses[path]
        found_LK += share * gradient_LK
    torch.testing.assert_close(found_LK, wanted_LK)


def test_only_the_layers_asked_for_are_tried_and_the_drawn_path_once() -> None:
    tried: list[tuple[int, ...]] = []

    def loss_of(path: list[int]) -> torch.Tensor:
        tried.append(tuple(path))
        return torch.tensor(float(sum(path)))

    _, gradient_LK = swap_gradient([0, 1, 2], [0, 2], torch.zeros(3, 3), loss_of, torch.zeros(3, 3))
    assert tried == [(0, 1, 2), (1, 1, 2), (2, 1, 2), (0, 1, 0), (0, 1, 1)]
    assert not gradient_LK[1].any()
    torch.testing.assert_close(gradient_LK[0], torch.tensor([-1.0, 0.0, 1.0]) / 3)


@given(st.integers(1, 40), st.integers(1, 50), st.integers(0, 5))
def test_every_layer_comes_once_before_any_comes_again(layers: int, at_once: int, seed: int) -> None:
    turns = [layers_in_turn(seed, number, layers, at_once) for number in range(2 * layers)]
    counts = [0] * layers
    for turn in turns:
        assert 0 < len(turn) <= min(at_once, layers)
        for at in turn:
            counts[at] += 1
        assert max(counts) - min(counts) <= 1
    assert turns == [layers_in_turn(seed, number, layers, at_once) for number in range(2 * layers)]


def test_a_step_is_the_gradient_over_its_usual_size() -> None:
    table = torch.nn.Parameter(torch.zeros(3, 2))
    optimizer = EvenDescent([table], lr=0.5)
    for size in (1.0, 1.0, 3.0):
        table.grad = torch.tensor([[size, -size], [0.0, 0.0], [0.0, 0.0]])
        optimizer.step()
    usual = (11 / 3) ** 0.5  # of squares 1, 1 and 9
    moved = 0.5 * (1 + 1 + 3 / usual)
    torch.testing.assert_close(table.detach(), torch.tensor([[-moved, moved], [0.0, 0.0], [0.0, 0.0]]))
    table.grad = torch.zeros(3, 2)
    optimizer.step()  # nothing to go by
    assert table.isfinite().all()


def test_decay_pulls_the_choices_of_a_moved_layer_together() -> None:
    table = torch.nn.Parameter(torch.tensor([[4.0, -4.0], [4.0, -4.0]]))
    table.grad = torch.tensor([[1.0, 1.0], [0.0, 0.0]])
    EvenDescent([table], lr=0.5, weight_decay=0.1).step()
    torch.testing.assert_close(table.detach(), torch.tensor([[4 - 0.5 * 1.4, -4 - 0.5 * 0.6], [4.0, -4.0]]))


def test_layers_that_hardly_differ_hardly_move() -> None:
    table = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = EvenDescent([table], lr=0.1)
    for _ in range(50):
        table.grad = torch.tensor([[1.0, -1.0], [1e-3, -1e-3]])
        optimizer.step()
    assert table[0].abs().min() > 5
    assert table[1].abs().max() < 0.01
