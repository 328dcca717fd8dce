"""HGRN2 against a loop over tokens, and at the size the FoX paper prints."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.mixers.gla import Hgrn2Options
from plait.mixers.gla_module import Hgrn2
from plait.model.cost import model_cost


def test_forward_is_the_recurrence_of_the_paper() -> None:
    torch.manual_seed(0)
    mixer = Hgrn2(12, Hgrn2Options(head_dim=4)).double()
    torch.nn.init.normal_(mixer.norm.weight)
    x = torch.randn(1, 7, 12, dtype=torch.float64)
    query, forget, value = mixer.input.weight.chunk(3)
    state = torch.zeros(3, 4, 4, dtype=torch.float64)
    expected = []
    for x_t in x[0]:
        q, v = F.silu(query @ x_t).view(3, 4), (value @ x_t).view(3, 4)
        f = torch.sigmoid(forget @ x_t).view(3, 4, 1)
        state = f * state + (1 - f) * v[:, None, :]
        o = (q[:, None, :] @ state).flatten()
        expected.append(mixer.output.weight @ (o / (o.square().mean() + 1e-6).sqrt() * mixer.norm.weight))
    torch.testing.assert_close(mixer(x)[0], torch.stack(expected))


def test_a_gate_that_keeps_everything_writes_nothing() -> None:
    """1 − f must not round to a small number when f is almost 1: keys there are σ(−f), exact to the last digit."""
    mixer = Hgrn2(4, Hgrn2Options(head_dim=4))
    with torch.no_grad():
        mixer.input.weight[4:8] = 20 * torch.eye(4)
    _, k, _, g = mixer._project(torch.ones(1, 4))
    torch.testing.assert_close(k, torch.full_like(k, 2.0611537e-09), rtol=1e-5, atol=0)
    torch.testing.assert_close(g, -k, rtol=1e-5, atol=0)


def test_parameters_as_the_fox_paper_prints_them() -> None:
    """Arxiv 2503.02130, Table 6: 756M; the paper cuts, it does not round."""
    cost = model_cost("d=1536 vocab=50257 | (hgrn2[head_dim=128] swiglu[inner=4096])x24")
    assert cost.params_without_input_embedding // 10**6 == 756


def test_head_dim_must_divide_the_width() -> None:
    with pytest.raises(UserError, match="d=96 is not a multiple of head_dim=128"):
        Hgrn2Options().check(96)
