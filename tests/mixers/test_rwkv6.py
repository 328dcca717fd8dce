"""RWKV-6 time mixing against a loop written from the paper's equations, and its initial values."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.mixers.rwkv import Rwkv6Options
from plait.mixers.rwkv_module import Rwkv6
from plait.model import build


def test_forward_is_the_recurrence_of_the_paper() -> None:
    torch.manual_seed(0)
    mixer = Rwkv6(12, Rwkv6Options(head_dim=4, decay_rank=3, mix_rank=2)).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.5)
    x = torch.randn(1, 7, 12, dtype=torch.float64)
    state, before = torch.zeros(3, 4, 4, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    expected = []
    for x_t in x[0]:
        delta = before - x_t
        low = torch.tanh(mixer.shift_down(x_t + delta * mixer.shift_x_D)).view(5, 2)
        x_w, x_k, x_v, x_r, x_g = (
            x_t + delta * (mixer.shift_up[i].bias + mixer.shift_up[i].weight @ low[i]) for i in range(5)
        )
        w = torch.exp(-torch.exp(mixer.decay_up(torch.tanh(mixer.decay_down(x_w))))).view(3, 4, 1)
        r, k, v = (part.view(3, 4) for part in (mixer.receptance(x_r), mixer.key(x_k), mixer.value(x_v)))
        write = k[:, :, None] * v[:, None, :]
        o = (r[:, None, :] @ (state + mixer.bonus_HK[:, :, None] * write)).view(1, 12)
        state, before = w * state + write, x_t
        normed = F.group_norm(o, 3, mixer.norm_weight_HK.flatten(), mixer.norm_bias_HK.flatten(), eps=64e-5)
        expected.append(mixer.output(normed[0] * F.silu(mixer.gate(x_g))))
    torch.testing.assert_close(mixer(x)[0], torch.stack(expected))


def test_initial_memories_run_from_three_tokens_to_four_hundred() -> None:
    mixer = build("d=32 vocab=8 | rwkv6[head_dim=8]").backbone.blocks[0].mixer
    memory = 1 / -torch.expm1(-torch.exp(mixer.decay_up.bias))
    assert 400 < memory[0] < 410
    assert 3 < memory[-1] < 3.5
    assert (memory.diff() < 0).all()


def test_token_shift_starts_from_its_ramps_alone() -> None:
    """The low-rank part is zero at first, but its second factor is not, so that the first one gets a gradient."""
    mixer = build("d=16 vocab=8 | rwkv6[head_dim=8]").backbone.blocks[0].mixer
    x, before = torch.ones(1, 16), torch.zeros(1, 16)
    ramp = torch.arange(16) / 16
    for shifted, expected in zip(mixer._shift(x, before), [ramp] * 3 + [ramp.sqrt()] * 2, strict=True):
        torch.testing.assert_close(shifted[0], expected)
    sum(mixer._shift(x, before)).sum().backward()
    assert mixer.shift_down.weight.grad.abs().max() > 0


def test_head_dim_must_divide_the_width() -> None:
    with pytest.raises(UserError, match="d=96 is not a multiple of head_dim=64"):
        Rwkv6Options().check(96)
