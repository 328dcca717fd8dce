"""Hyena and multi-head Hyena against the equations in their docstrings, written out."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.mixers.hyena import HyenaOptions, MhHyenaOptions
from plait.mixers.hyena_module import Hyena, HyenaBase, MultiHeadHyena
from plait.model import build
from plait.model.architecture import architecture

D, T = 12, 19


def _x() -> Tensor:
    return torch.randn(2, T, D, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def _qkv(mixer: HyenaBase, x: Tensor) -> tuple[Tensor, ...]:
    projected = mixer.qkv(x)
    convolved = torch.zeros_like(projected)
    for t in range(T):
        for age in range(min(3, t + 1)):
            convolved[:, t] += mixer.taps_CW[:, 2 - age] * projected[:, t - age]
    return convolved.chunk(3, dim=-1)


def _taps(mixer: HyenaBase) -> Tensor:
    """The filters, tap by tap: (C, T)."""
    decay = torch.exp(-torch.exp(mixer.filter.log_rate_CS))
    return torch.stack([(mixer.filter.residues_CS * decay**t).sum(-1) for t in range(T)], dim=-1)


@torch.no_grad()
def test_hyena_is_its_equation() -> None:
    torch.manual_seed(0)
    mixer = Hyena(D, HyenaOptions(state=5)).double()
    mixer.skip_D.normal_()
    q, k, v = _qkv(mixer, _x())
    z, h = k * v, _taps(mixer)
    y = mixer.skip_D * z
    for t in range(T):
        for s in range(t + 1):
            y[:, t] += h[:, t - s] * z[:, s]
    torch.testing.assert_close(mixer(_x()), mixer.output(q * y))


@torch.no_grad()
def test_multi_head_hyena_is_its_equation() -> None:
    torch.manual_seed(0)
    mixer = MultiHeadHyena(D, MhHyenaOptions(heads=3, state=2)).double()
    q, k, v = (part.unflatten(-1, (3, 4)) for part in _qkv(mixer, _x()))
    h = _taps(mixer)
    y = torch.zeros_like(v)
    for t in range(T):
        for s in range(t + 1):
            outer = v[:, s, :, :, None] * k[:, s, :, None, :]
            y[:, t] += h[:, t - s, None] * (outer @ q[:, t, :, :, None])[..., 0]
    torch.testing.assert_close(mixer(_x()), mixer.output(y.flatten(-2)))


def test_initial_filters_span_the_memories_and_have_unit_energy() -> None:
    mixer = build("d=128 vocab=8 | hyena").backbone.blocks[0].mixer
    memory = torch.exp(-mixer.filter.log_rate_CS)
    assert memory.min() > 1
    assert memory.max() < 1000
    # Every filter reaches from a few tokens to hundreds, and no two modes are the same.
    assert (memory.amin(1) < 2).all()
    assert (memory.amax(1) > 500).all()
    assert memory.unique().numel() == memory.numel()
    log_lambda, residues = mixer.filter.modes()
    energy = ((residues[..., None] * torch.exp(log_lambda[..., None] * torch.arange(8000))) ** 2).sum((-2, -1))
    assert 0.9 < energy.mean() < 1.1


def test_states_of_mad() -> None:
    for text in ("hyena", "mh-hyena"):
        assert architecture(f"d=128 vocab=8 | {text}").layers[0].cost(128, 1).fixed_state == 2048


def test_only_order_two() -> None:
    with pytest.raises(UserError, match="order=3 given; allowed: 2"):
        architecture("d=128 vocab=8 | hyena[order=3]")
    with pytest.raises(UserError, match="not a multiple of heads=5"):
        architecture("d=128 vocab=8 | mh-hyena[heads=5]")
