"""QK-norm by its formula, x / sqrt(mean(x²) + eps), with the eps that a spec asks for."""

from __future__ import annotations

import math

import pytest
import torch

from plait.core.errors import UserError
from plait.mixers.rotary import RopeScaling
from plait.model import build
from plait.model.architecture import architecture


@pytest.mark.parametrize("norm", ["shared", "per-head"])
@pytest.mark.parametrize(("options", "eps"), [("", 1e-5), (",qk_eps=1e-6", 1e-6), (",qk_eps=0.25", 0.25)])
def test_the_eps_of_qk_norm(norm: str, options: str, eps: float) -> None:
    model = build(f"d=32 vocab=11 | attn[heads=4,kv_heads=2,pos=none,qk_norm={norm}{options}]").double()
    mixer = model.backbone.blocks[0].mixer
    x = 1e-2 * torch.randn(2, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    q, k, _, _ = mixer.heads_of(x)
    raw = mixer.qkv(x).unflatten(-1, (8, 8))
    for found, plain in ((q, raw[..., :4, :]), (k, raw[..., 4:6, :])):
        expected = plain / (plain.square().mean(-1, keepdim=True) + eps).sqrt()
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=0)


def test_its_default_is_not_written() -> None:
    given, default = (architecture(f"d=32 | fox[qk_norm=shared{eps}]") for eps in (",qk_eps=1e-5", ""))
    assert given.hash == default.hash
    assert "qk_eps" not in given.text
    with pytest.raises(UserError, match="qk_eps"):
        architecture("d=32 | fox[qk_norm=shared,qk_eps=-1]")


def test_part_of_a_head_turns_and_part_does_not() -> None:
    """Moved along the sequence, a head that turns a quarter of its channels gives the same, one by one or at once."""
    mixer = build("d=32 vocab=8 | attn[heads=2,rotary=0.25]").backbone.blocks[0].mixer
    x = torch.randn(1, 3, 32)
    q, _, _ = mixer._split(mixer._joint(x, {}))
    turned = mixer._turn(q, None)
    torch.testing.assert_close(turned[..., 4:], q[..., 4:])
    assert (turned[:, 1:, :, :4] - q[:, 1:, :, :4]).abs().max() > 1e-3
    torch.testing.assert_close(turned[..., :4].norm(dim=-1), q[..., :4].norm(dim=-1))


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("attn[heads=2,rotary=1.5]", "rotary=1.5 given"),
        ("attn[heads=2,rotary=0.2]", "needs an even number of channels to turn, not 3"),
        ("attn[heads=2,out_gate,head_gate]", "two gates on the same output"),
        ("fox[heads=2,sinks]", "sinks go with neither"),
        ("attn[heads=2,bias,qkv_bias]", "leave qkv_bias out"),
        ("attn[heads=2,pos=none,rope_scaling=linear]", "needs pos=rope"),
        ("attn[heads=2,rope_scaling=llama3,rope_low=4]", "rope_low=4 must be less than rope_high=4"),
        ("attn[heads=2,rope_scaling=yarn,theta=1]", "theta above 1"),
    ],
)
def test_options_that_do_not_fit(spec: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(f"d=32 vocab=8 | {spec}")


def test_a_gate_per_head() -> None:
    mixer = build("d=32 vocab=8 | attn[heads=2,head_gate]").backbone.blocks[0].mixer
    x, mixed = torch.randn(1, 3, 32), torch.randn(1, 3, 2, 16)
    gates = torch.sigmoid(x @ mixer.head_gate.weight.T)
    want = mixer.output((mixed * gates[..., None]).flatten(-2))
    torch.testing.assert_close(mixer._combine(x, mixed), want)


def test_slow_frequencies_are_divided_and_fast_ones_kept() -> None:
    """Llama 3.1's numbers: context 8192, factor 8, base 500,000, heads of 128; turns 4 and 1 are the two ends."""
    width, theta, context, factor = 128, 500_000.0, 8192, 8.0
    scaled = RopeScaling("llama3", factor, context, 1.0, 4.0).slowdown(width, theta, torch.float64, torch.device("cpu"))
    for i, found in enumerate(scaled.tolist()):
        wavelength = 2 * math.pi * theta ** (2 * i / width)
        if wavelength < context / 4:
            assert found == 1
        elif wavelength > context:
            assert found == pytest.approx(1 / factor)
        else:
            smooth = (context / wavelength - 1) / 3
            assert found == pytest.approx((1 - smooth) / factor + smooth)
    assert (scaled == 1).sum() > 20
    assert ((scaled > 1 / factor) & (scaled < 1)).sum() > 2


def test_yarn_at_its_papers_numbers() -> None:
    """LLaMA's base and context with s = 16: 32 turns are made by pair 20.9 of 64, one by pair 45.03 (their formula by
    hand), so pairs up to 20 are kept and from 46 on divided; queries and keys grow by 0.1 ln 16 + 1."""
    scaling = RopeScaling("yarn", 16.0, 4096, 1.0, 32.0)
    slowed = scaling.slowdown(128, 10_000.0, torch.float64, torch.device("cpu"))
    assert (slowed[:21] == 1).all()
    assert slowed[21] < 1
    torch.testing.assert_close(slowed[46:], torch.full((18,), 1 / 16, dtype=torch.float64))
    assert slowed[45] > 1 / 16
    assert scaling.magnitude == pytest.approx(1.27726, abs=1e-5)
