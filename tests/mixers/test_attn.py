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
