"""Kimi delta attention against a loop written from the paper's equation, and Gated DeltaNet 2 as its option."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from plait.core.errors import UserError
from plait.mixers.deltanet import KdaOptions
from plait.mixers.deltanet_module import KimiDeltaAttention
from plait.model import build


def looped(mixer: KimiDeltaAttention, x: Tensor, *, heads: int, width: int) -> Tensor:
    """Token by token, with the whole transition matrix written out."""
    inner = heads * width
    by_channel = mixer.by_channel
    sizes = [3 * inner, 2 * inner if by_channel else heads, width, width]
    qkv, strength, low, gate = mixer.input(x).split(sizes, dim=-1)
    past = F.pad(qkv, (0, 0, 2, 0))
    eye, state, expected = torch.eye(width, dtype=x.dtype), torch.zeros(heads, width, width, dtype=x.dtype), []
    for t in range(len(x)):
        q, k, v = F.silu((past[t : t + 3] * mixer.taps_CW.T).sum(0)).view(3, heads, width)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        rate = mixer.log_rate_H.exp()[:, None] * F.softplus(mixer.decay(low[t])).view(heads, width)
        alpha = torch.diag_embed(torch.exp(-rate))
        gates = strength[t].sigmoid()
        if by_channel:
            erase, write = gates.view(2, heads, width)
            erase = (2 if mixer.options.neg_eigval else 1) * erase  # what is written is not doubled
            state = (eye - k[:, :, None] * (erase * k)[:, None, :]) @ alpha @ state
            state = state + k[:, :, None] * (write * v)[:, None, :]
        else:
            beta = (2 if mixer.options.neg_eigval else 1) * gates[:, None, None]
            state = (eye - beta * k[:, :, None] * k[:, None, :]) @ alpha @ state + beta * k[:, :, None] * v[:, None, :]
        o = (q[:, None, :] @ state)[:, 0] / width**0.5
        o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.norm.weight
        expected.append(mixer.output(o.flatten() * mixer.gate(gate[t]).sigmoid()))
    return torch.stack(expected)


@pytest.mark.parametrize(
    "options",
    [
        KdaOptions(head_dim=4, conv=3),
        KdaOptions(head_dim=4, heads=2, conv=3, neg_eigval=True),
        KdaOptions(head_dim=4, conv=3, write="channel"),
        KdaOptions(head_dim=4, conv=3, write="channel", neg_eigval=True),
    ],
)
def test_forward_is_the_equation_of_the_paper(options: KdaOptions) -> None:
    torch.manual_seed(0)
    mixer = KimiDeltaAttention(12, options).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.5)
    x = torch.randn(1, 9, 12, dtype=torch.float64)
    want = looped(mixer, x[0], heads=options.heads or 3, width=4)
    torch.testing.assert_close(mixer(x)[0], want, rtol=1e-4, atol=1e-4)


def test_heads_may_be_wider_than_the_model() -> None:
    """Kimi Linear 48B: width 2,304, 32 heads of 128."""
    cost = KdaOptions(heads=32).cost(2304, 1)
    assert cost.params["query, key, value"] == 3 * 2304 * 4096
    assert cost.fixed_state == 32 * 128 * 128


def test_initial_decays_are_mambas() -> None:
    mixer = build("d=32 vocab=8 | kda[head_dim=16]").backbone.blocks[0].mixer
    steps = F.softplus(mixer.decay.bias)
    assert 1e-3 <= steps.min() < steps.max() <= 0.1
    assert ((mixer.log_rate_H.exp() >= 1) & (mixer.log_rate_H.exp() <= 16)).all()


def test_head_dim_must_divide_the_width() -> None:
    with pytest.raises(UserError, match="d=96 is not a multiple of head_dim=128; change one or set heads"):
        KdaOptions().check(96)
