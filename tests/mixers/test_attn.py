"""QK-norm by its formula, x / sqrt(mean(x²) + eps), with the eps that a spec asks for."""

from __future__ import annotations

import pytest
import torch

from plait.core.errors import UserError
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
    q, _, _ = mixer._project(x)
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
