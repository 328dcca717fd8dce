"""RWKV-7 time mixing against a loop written from the paper's equations, its initial values and its eigenvalues."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.mixers.rwkv import Rwkv7Options
from plait.mixers.rwkv_module import Rwkv7
from plait.model import build


@pytest.mark.parametrize("neg_eigval", [False, True])
def test_forward_is_the_recurrence_of_the_paper(neg_eigval: bool) -> None:
    torch.manual_seed(0)
    options = Rwkv7Options(head_dim=4, decay_rank=3, rate_rank=2, gate_rank=5, neg_eigval=neg_eigval)
    mixer = Rwkv7(12, options).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.5)
    x = torch.randn(1, 7, 12, dtype=torch.float64)
    # As the paper has it: rows are values, columns keys.
    state, before = torch.zeros(3, 4, 4, dtype=torch.float64), torch.zeros(12, dtype=torch.float64)
    expected = []
    for x_t in x[0]:
        x_r, x_w, x_k, x_v, x_a, x_g = (x_t + (before - x_t) * mu for mu in mixer.shift_ND)
        before = x_t
        r, k, v = (part.view(3, 4) for part in (mixer.receptance(x_r), mixer.key(x_k), mixer.value(x_v)))
        w = torch.exp(-math.exp(-0.5) * mixer.decay_up(torch.tanh(mixer.decay_down(x_w))).sigmoid()).view(3, 4)
        a = mixer.rate_up(mixer.rate_down(x_a)).sigmoid().view(3, 4) * (2 if neg_eigval else 1)
        kappa = F.normalize(k * mixer.removal_D.view(3, 4), dim=-1)
        k = k * (1 + (a - 1) * mixer.replace_D.view(3, 4))
        transition = torch.diag_embed(w) - kappa[:, :, None] * (a * kappa)[:, None, :]
        state = state @ transition + v[:, :, None] * k[:, None, :]
        o = (state @ r[:, :, None]).view(1, 12)
        normed = F.group_norm(o, 3, mixer.norm_weight_HK.flatten(), mixer.norm_bias_HK.flatten(), eps=4e-5)[0]
        bonus = (r * k * mixer.bonus_HK).sum(-1, keepdim=True) * v
        gate = mixer.gate_up(mixer.gate_down(x_g).sigmoid())
        expected.append(mixer.output((normed + bonus.flatten()) * gate))
    torch.testing.assert_close(mixer(x)[0], torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_initial_decays_start_weak_and_grow_stronger_over_the_channels() -> None:
    mixer = build("d=64 vocab=8 | rwkv7[head_dim=16]").backbone.blocks[0].mixer
    decay = torch.exp(-math.exp(-0.5) * mixer.decay_up.bias.sigmoid()).view(4, 16).mean(-1)
    assert decay[0] > 0.98
    assert (decay.diff() < 0).all()


def test_low_rank_maps_start_at_zero_and_can_leave_it() -> None:
    mixer = build("d=16 vocab=8 | rwkv7[head_dim=8]").backbone.blocks[0].mixer
    x = torch.randn(1, 5, 16)
    mixer(x).square().sum().backward()
    assert not mixer.decay_down.weight.any()
    assert mixer.decay_down.weight.grad.abs().max() > 0
    assert mixer.rate_down.weight.grad.abs().max() > 0


def test_head_dim_must_divide_the_width() -> None:
    with pytest.raises(UserError, match="d=96 is not a multiple of head_dim=64"):
        Rwkv7Options().check(96)
