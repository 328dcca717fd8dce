"""Recurrences keep their precision under autocast."""

from __future__ import annotations

import pytest
import torch

from plait.ops.delta import delta
from plait.ops.gla import gla
from plait.ops.linear import linear_attention
from plait.ops.longconv import modal_conv, multihead_conv
from plait.ops.scan import selective_scan
from plait.ops.shortconv import short_conv


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


Q, K, V = (drawn(2, 40, 3, 4, seed=s) for s in range(3))
DECAY = -drawn(2, 40, 3, seed=3).abs()
X = drawn(2, 40, 6, seed=4)
MODES = -drawn(6, 2, seed=5).abs()
CALLS = {
    "gla": lambda: gla(Q, K, V, DECAY),
    "delta": lambda: delta(Q, K / K.norm(dim=-1, keepdim=True), V, DECAY.exp(), DECAY),
    "linear": lambda: linear_attention(Q, K, V),
    "scan": lambda: selective_scan(X, X.abs(), MODES, Q[:, :, 0, :2], K[:, :, 0, :2]),
    "modal_conv": lambda: modal_conv(X, MODES, MODES),
    "multihead_conv": lambda: multihead_conv(Q, K, V, MODES[:3], MODES[:3]),
    "short_conv": lambda: short_conv(X, drawn(6, 3, seed=6)),
}


@pytest.mark.parametrize("name", CALLS)
def test_autocast_changes_nothing(name):
    expected = CALLS[name]()[0]
    with torch.autocast("cpu", torch.float16):
        found = CALLS[name]()[0]
    assert torch.equal(found, expected)


def test_half_precision_inputs_meet_full_precision_gates():
    with torch.autocast("cpu", torch.float16):
        out, state = gla(Q.half(), K.half(), V.half(), DECAY)
    assert out.dtype == state.dtype == torch.float32
    torch.testing.assert_close(out, gla(Q, K, V, DECAY)[0], rtol=1e-2, atol=1e-2)
