"""Gated linear attention against a loop over heads and tokens."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.mixers.gla import GlaOptions
from plait.mixers.gla_module import GatedLinearAttention
from plait.ops.gla import gla_reference


def test_forward_is_the_recurrence_of_the_paper() -> None:
    torch.manual_seed(0)
    options = GlaOptions(heads=2, expand_k=0.5, expand_v=1.5, gate_rank=3, tau=4.0)
    mixer = GatedLinearAttention(16, options).double()
    torch.nn.init.normal_(mixer.norm.weight)
    x = torch.randn(1, 7, 16, dtype=torch.float64)
    query, key, value, out_gate, low = mixer.input.weight.split([8, 8, 24, 24, 3])
    expected = []
    states = [torch.zeros(4, 12, dtype=torch.float64) for _ in range(2)]
    for x_t in x[0]:
        keep = torch.sigmoid(mixer.decay.weight @ (low @ x_t) + mixer.decay.bias) ** (1 / 4)
        heads = []
        for h in range(2):
            k_rows, v_rows = slice(4 * h, 4 * h + 4), slice(12 * h, 12 * h + 12)
            write = torch.outer((key @ x_t)[k_rows], (value @ x_t)[v_rows])
            states[h] = keep[k_rows, None] * states[h] + write
            o = (query @ x_t)[k_rows] @ states[h] / 2  # 2 is √K
            heads.append(o / (o.square().mean() + 1e-6).sqrt() * mixer.norm.weight)
        expected.append(mixer.output.weight @ (torch.cat(heads) * F.silu(out_gate @ x_t)))
    torch.testing.assert_close(mixer(x)[0], torch.stack(expected))


def test_mad_state() -> None:
    assert GlaOptions(heads=8).cost(128, 1).fixed_state == 8 * 16**2 == 2048


def test_widths_that_do_not_split_into_heads_are_refused() -> None:
    with pytest.raises(UserError, match="expand_k = 48 is not a multiple of heads=5"):
        GlaOptions(heads=5, expand_k=0.75).check(64)
    with pytest.raises(UserError, match=r"expand_v = 19\.2"):
        GlaOptions(heads=4, expand_v=0.3).check(64)


def test_short_convolution_goes_before_the_heads() -> None:
    """With taps that pass the present token alone, it is `gla` on silu of queries, keys and values."""
    torch.manual_seed(0)
    mixer = GatedLinearAttention(8, GlaOptions(heads=2, conv=3)).double()
    with torch.no_grad():
        mixer.taps_CW.zero_()
        mixer.taps_CW[:, -1] = 1
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    qkv, gate, low = mixer.input(x).split(mixer.splits, dim=-1)
    q, k, v, g = mixer._heads(F.silu(qkv), low)
    o, _ = gla_reference(q, k, v, g, scale=mixer.scale)
    torch.testing.assert_close(mixer(x), mixer._combine(o, gate))
    with torch.no_grad():
        mixer.taps_CW[:, 0] = 1  # and now the token two before
    earlier = F.pad(qkv, (0, 0, 2, 0))[:, :6]
    q, k, v, g = mixer._heads(F.silu(qkv + earlier), low)
    o, _ = gla_reference(q, k, v, g, scale=mixer.scale)
    torch.testing.assert_close(mixer(x), mixer._combine(o, gate))
