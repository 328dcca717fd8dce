"""Sparse experts: sigmoid routing, experts that every token meets, and a bias that evens out the load."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from plait.mixers.mlp import MoeOptions
from plait.mixers.mlp_module import MixtureOfExperts


def made(**options) -> MixtureOfExperts:
    torch.manual_seed(0)
    mixer = MixtureOfExperts(6, MoeOptions(experts=5, active=2, inner=4, **options)).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.7)
    return mixer


def test_sigmoid_routing_with_a_bias_in_choosing_and_shared_experts() -> None:
    mixer = made(router="sigmoid", bias=True, shared=1, scale=2.5)
    x = torch.randn(1, 9, 6, dtype=torch.float64)
    for token, y in zip(x[0], mixer(x)[0], strict=True):
        scores = (mixer.router.weight @ token).sigmoid()
        chosen = sorted(range(5), key=lambda e: -(scores + mixer.bias_E)[e].item())[:2]
        gate, up = (mixer.shared_gate_up.weight @ token).chunk(2)
        want = mixer.shared_down.weight @ (F.silu(gate) * up)
        for e in chosen:
            gate, up = (token @ mixer.gate_up_EDW[e]).chunk(2)
            weight = 2.5 * scores[e] / sum(scores[c] for c in chosen)
            want = want + weight * ((F.silu(gate) * up) @ mixer.down_EWD[e])
        torch.testing.assert_close(y, want)


def test_the_bias_is_lowered_where_the_load_is_high_and_costs_nothing() -> None:
    mixer, plain = made(bias=True, balance=0.0), made(balance=0.0)
    x = torch.randn(2, 50, 6, dtype=torch.float64)
    _, loss = mixer.forward_with_loss(x)
    assert loss == 0 == plain.forward_with_loss(x)[1]
    loss.backward()
    scores = x.flatten(0, 1) @ mixer.router.weight.T + mixer.bias_E
    load = torch.bincount(scores.topk(2).indices.flatten(), minlength=5) / 200
    torch.testing.assert_close(mixer.bias_E.grad, (load - 0.2).sign().double())


def test_following_the_bias_gradient_evens_out_the_load() -> None:
    mixer = made(router="sigmoid", bias=True, balance=0.0)
    with torch.no_grad():
        mixer.bias_E.zero_()
    x = torch.randn(4, 100, 6, dtype=torch.float64)

    def spread() -> float:
        scores = (x.flatten(0, 1) @ mixer.router.weight.T).sigmoid() + mixer.bias_E
        load = torch.bincount(scores.topk(2).indices.flatten(), minlength=5) / 800
        return float(load.max() - load.min())

    before = spread()
    optimizer = torch.optim.Adam([mixer.bias_E], lr=0.01)
    for _ in range(150):
        optimizer.zero_grad()
        mixer.forward_with_loss(x)[1].backward()
        optimizer.step()
    assert spread() < before / 4


def test_what_every_token_meets_is_active() -> None:
    cost = MoeOptions(experts=4, active=1, inner=10, shared=2, bias=True).cost(8, 3)
    assert cost.active_params == 8 * 4 + 4 + 3 * 3 * 8 * 10
    assert cost.total_params == 8 * 4 + 4 + 6 * 3 * 8 * 10
