"""Gated DeltaNet against a loop over tokens, and its sizes."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.mixers.deltanet import GatedDeltaNetOptions
from plait.mixers.deltanet_module import GatedDeltaNet


def test_forward_is_the_gated_delta_rule() -> None:
    torch.manual_seed(0)
    mixer = GatedDeltaNet(8, GatedDeltaNetOptions(head_dim=4, expand_v=1.5, conv=3)).double()
    with torch.no_grad():
        for parameter in (mixer.norm.weight, mixer.log_rate_H, mixer.step_bias_H):
            parameter.normal_()
    x = torch.randn(1, 7, 8, dtype=torch.float64)
    projected, gate, strength, step = mixer.input(x[0]).split([28, 12, 2, 2], dim=-1)
    past = F.pad(projected, (0, 0, 2, 0))
    state = torch.zeros(2, 4, 6, dtype=torch.float64)
    expected = []
    for t in range(7):
        convolved = F.silu((past[t : t + 3] * mixer.taps_CW.T).sum(0))
        q, k, v = (part.view(2, -1) for part in convolved.split([8, 8, 12]))
        q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
        decay = torch.exp(-mixer.log_rate_H.exp() * torch.log1p(torch.exp(step[t] + mixer.step_bias_H)))
        beta = strength[t].sigmoid()[:, None, None]
        state = decay[:, None, None] * state
        state = state + beta * k[:, :, None] * (v[:, None, :] - k[:, None, :] @ state)
        o = (q[:, None, :] @ state)[:, 0] / 2  # 2 is √K
        o = o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm.weight
        expected.append(mixer.output(o.flatten() * F.silu(gate[t])))
    torch.testing.assert_close(mixer(x)[0], torch.stack(expected))


def test_values_may_be_wider_than_keys() -> None:
    cost = GatedDeltaNetOptions(head_dim=64, expand_v=2.0).cost(128, 1)
    assert cost.fixed_state == 2 * 64 * 128
    assert cost.conv_state == (2 * 128 + 256) * 3


def test_widths_that_do_not_split_into_heads_are_refused() -> None:
    with pytest.raises(UserError, match="d=96 is not a multiple of head_dim=128"):
        GatedDeltaNetOptions().check(96)
    with pytest.raises(UserError, match=r"expand_v = 19\.2 is not a multiple of the 4 heads"):
        GatedDeltaNetOptions(head_dim=16, expand_v=0.3).check(64)
