"""Hyena experts: sparse routing equals the dense sum with masked weights, and is sparse."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.mixers.hyena import HyenaExpertsOptions
from plait.mixers.hyena_module import HyenaExperts
from plait.model.architecture import architecture
from plait.ops.longconv import modal_conv

D = 24


def _mixer(active: int = 2) -> HyenaExperts:
    torch.manual_seed(0)
    return HyenaExperts(D, HyenaExpertsOptions(experts=6, active=active, state=3)).double()


def _x() -> Tensor:
    return torch.randn(2, 17, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def _dense(mixer: HyenaExperts, x: Tensor) -> Tensor:
    """Every expert by itself, weighted by a softmax over all experts in which those not chosen score −∞."""
    scores = mixer.router(x)
    least = scores.sort(dim=-1, descending=True).values[..., mixer.active - 1, None]
    weights = scores.masked_fill(scores < least, -torch.inf).softmax(dim=-1)
    (q, k, v), _ = mixer.project(x, None)
    log_lambda, residues = mixer.filter.modes()
    total = torch.zeros(*x.shape[:2], mixer.width, dtype=x.dtype)
    for e in range(mixer.experts):
        own = slice(e * mixer.width, (e + 1) * mixer.width)
        y, _ = modal_conv((k * v)[..., own].contiguous(), log_lambda[own], residues[own], mixer.skip_C[own])
        total = total + weights[..., e, None] * q[..., own] * y
    out: Tensor = mixer.output(total)
    return out


@pytest.mark.parametrize("active", [1, 2, 6])
def test_equals_the_dense_sum_with_masked_weights(active: int) -> None:
    mixer, x = _mixer(active), _x()
    torch.testing.assert_close(mixer(x), _dense(mixer, x))
    sparse = torch.autograd.grad(mixer(x).square().sum(), list(mixer.parameters()))
    dense = torch.autograd.grad(_dense(mixer, x).square().sum(), list(mixer.parameters()))
    for one, other in zip(sparse, dense, strict=True):
        torch.testing.assert_close(one, other)


def test_an_expert_not_chosen_has_no_part_in_the_output() -> None:
    mixer, x = _mixer(), _x()
    with torch.no_grad():
        before = mixer(x)
        _, chosen = mixer.route(x)
        mixer.skip_C[: mixer.width] += 10.0
        changed = (mixer(x) != before).any(-1)
    assert torch.equal(changed, (chosen == 0).any(-1))
    assert changed.any()
    assert not changed.all()


def test_experts_not_chosen_still_see_every_token() -> None:
    mixer, x = _mixer(), _x()
    with torch.no_grad():
        _, state = mixer.extend(x[:, :1], mixer.init_state(2))
    assert (state["modes"] != 0).all()


def test_weights_of_a_token_sum_to_one() -> None:
    weight, chosen = _mixer().route(_x())
    assert chosen.shape[-1] == 2
    torch.testing.assert_close(weight.sum(-1), torch.ones_like(weight[..., 0]))


def test_cost_follows_the_papers_terms() -> None:
    seq, d = 64, 128
    options = HyenaExpertsOptions()
    cost = options.cost(d, seq)
    # App. C.4.8: projections 6LD², out layer 2·L·D_moh·D, convs on projections 18LD.
    assert cost.flops["projections"] == 6 * seq * d**2 + 2 * seq * 16 * d
    assert cost.flops["short conv"] == 18 * seq * d
    assert cost.fixed_state == 2048
    assert cost.total_params - cost.active_params == 6 * 16 * (2 * 16 + 1)


def test_options_that_do_not_fit() -> None:
    with pytest.raises(UserError, match="active=9 is more than experts=8"):
        architecture("d=128 vocab=8 | hyena-experts[active=9]")
    with pytest.raises(UserError, match="set width"):
        architecture("d=100 vocab=8 | hyena-experts")
    assert architecture("d=100 vocab=8 | hyena-experts[width=16]").layers[0].cost(100, 1).fixed_state == 8 * 16 * 16
