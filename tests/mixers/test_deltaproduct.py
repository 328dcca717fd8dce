"""DeltaProduct against a loop over tokens and steps, and what its steps are for."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.mixers.deltanet import DeltaProductOptions
from plait.mixers.deltanet_module import DeltaProduct
from plait.ops.delta import delta


@pytest.mark.parametrize("neg_eigval", [False, True])
@pytest.mark.parametrize("forget", [False, True])
def test_forward_is_the_delta_rule_several_times_per_token(neg_eigval: bool, forget: bool) -> None:
    torch.manual_seed(0)
    options = DeltaProductOptions(head_dim=4, conv=3, steps=3, neg_eigval=neg_eigval, forget=forget, out_gate="silu")
    mixer = DeltaProduct(8, options).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.5)
    x = torch.randn(1, 7, 8, dtype=torch.float64)
    channels, strength, decay, gate = mixer.input(x[0]).split([8 * 7, 3 * 2, 2 * forget, 8], dim=-1)
    past = F.pad(channels, (0, 0, 2, 0))
    state, expected = torch.zeros(2, 4, 4, dtype=torch.float64), []
    for t in range(7):
        mixed = F.silu((past[t : t + 3] * mixer.taps_CW.T).sum(0))
        q = F.normalize(mixed[:8].view(2, 4), dim=-1)
        k, v = mixed[8:32].view(3, 2, 4), mixed[32:].view(3, 2, 4)
        if forget:
            rate = mixer.log_rate_H.exp() * F.softplus(decay[t] + mixer.step_bias_H)
            state = torch.exp(-rate)[:, None, None] * state
        for i in range(3):
            key = F.normalize(k[i], dim=-1)
            beta = strength[t].view(3, 2)[i].sigmoid() * (2 if neg_eigval else 1)
            reflect = torch.eye(4, dtype=torch.float64) - beta[:, None, None] * key[:, :, None] * key[:, None, :]
            state = reflect @ state + beta[:, None, None] * key[:, :, None] * v[i][:, None, :]
        o = (q[:, None, :] @ state)[:, 0] / 2  # 2 is √K
        o = o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm.weight
        expected.append(mixer.output(o.flatten() * F.silu(gate[t])))
    torch.testing.assert_close(mixer(x)[0], torch.stack(expected), rtol=1e-4, atol=1e-4)


def test_two_full_reflections_are_a_rotation() -> None:
    """What one step cannot do: a third of a turn, three of which leave the state where it was."""
    half = math.pi / 3
    keys = torch.tensor([[1.0, 0.0], [math.cos(half), math.sin(half)]])
    k = keys.repeat(3, 1).view(1, 6, 1, 2)
    state = torch.tensor([[[[0.3], [0.7]]]])
    _, turned = delta(k, k, torch.zeros(1, 6, 1, 1), torch.full((1, 6, 1), 2.0), state=state)
    torch.testing.assert_close(turned, state)
    _, once = delta(k[:, :2], k[:, :2], torch.zeros(1, 2, 1, 1), torch.full((1, 2, 1), 2.0), state=state)
    cos, sin = math.cos(2 * half), math.sin(2 * half)
    torch.testing.assert_close(once[0, 0], torch.tensor([[cos, -sin], [sin, cos]]) @ state[0, 0])


def test_head_dim_must_divide_the_width() -> None:
    with pytest.raises(UserError, match="d=96 is not a multiple of head_dim=128"):
        DeltaProductOptions().check(96)
