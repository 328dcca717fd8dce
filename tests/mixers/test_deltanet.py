"""DeltaNet against a loop over tokens, its defining property, and the size the FoX paper prints."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.mixers.deltanet import DeltaNetOptions
from plait.mixers.deltanet_module import DeltaNet, unit_length
from plait.model.cost import model_cost


def test_forward_is_the_delta_rule() -> None:
    torch.manual_seed(0)
    mixer = DeltaNet(12, DeltaNetOptions(head_dim=4, conv=3)).double()
    torch.nn.init.normal_(mixer.norm.weight)
    x = torch.randn(1, 7, 12, dtype=torch.float64)
    projected, strength = mixer.input(x[0]).split([36, 3], dim=-1)
    past = F.pad(projected, (0, 0, 2, 0))
    state = torch.zeros(3, 4, 4, dtype=torch.float64)
    expected = []
    for t in range(7):
        # The last tap is the current token's.
        q, k, v = F.silu((past[t : t + 3] * mixer.taps_CW.T).sum(0)).view(3, 3, 4)
        q, k = (part / (part.square().sum(-1, keepdim=True) + 1e-6).sqrt() for part in (q, k))
        beta = strength[t].sigmoid()[:, None, None]
        old = k[:, None, :] @ state
        state = state - beta * k[:, :, None] * old + beta * k[:, :, None] * v[:, None, :]
        o = (q[:, None, :] @ state)[:, 0] / 2  # 2 is √K
        o = o / (o.square().mean(-1, keepdim=True) + 1e-6).sqrt() * mixer.norm.weight
        expected.append(mixer.output(o.flatten()))
    torch.testing.assert_close(mixer(x)[0], torch.stack(expected))


def test_unit_length_is_smooth_at_zero() -> None:
    x = torch.zeros(4, requires_grad=True)
    unit_length(x).sum().backward()
    torch.testing.assert_close(x.grad, torch.full((4,), 1000.0))
    torch.testing.assert_close(unit_length(torch.tensor([3.0, 4.0])), torch.tensor([0.6, 0.8]))


def test_parameters_as_the_fox_paper_prints_them() -> None:
    """Arxiv 2503.02130, Table 6: 757M; the paper cuts, it does not round."""
    cost = model_cost("d=1536 vocab=50257 | (deltanet[head_dim=128] swiglu[inner=4096])x24")
    assert cost.params_without_input_embedding // 10**6 == 757


def test_head_dim_must_divide_the_width() -> None:
    with pytest.raises(UserError, match="d=96 is not a multiple of head_dim=128"):
        DeltaNetOptions().check(96)


def test_negative_eigenvalues_double_the_write_strength() -> None:
    """At β = 2 and no value the state is turned over along the key: what a parity needs."""
    plain, signed = (DeltaNet(8, DeltaNetOptions(head_dim=4, neg_eigval=value)) for value in (False, True))
    strength = torch.tensor([-50.0, 0.0, 50.0])
    torch.testing.assert_close(plain._write_strength(strength), torch.tensor([0.0, 0.5, 1.0]))
    torch.testing.assert_close(signed._write_strength(strength), torch.tensor([0.0, 1.0, 2.0]))
