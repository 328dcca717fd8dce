"""One token of generation: the GPU's kernels against the equations, on a GPU or in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE

from plait.ops.gla import gla_step
from plait.ops.paths import plain_ops
from plait.ops.shortconv import short_conv_step


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


@pytest.mark.parametrize(("H", "G", "K", "V"), [(4, 4, 12, 40), (6, 2, 16, 33)])
@pytest.mark.parametrize("kind", ["per head", "per channel", "bonus"])
def test_one_token_of_the_recurrence(H, G, K, V, kind):
    from plait.ops.step_triton import gla_step_kernel

    rows = drawn(3, G, 2 * K + 5)  # queries and keys are slices of one projection
    q, k, v, state = rows[..., 3 : 3 + K], rows[..., 3 + K : 3 + 2 * K], drawn(3, H, V), drawn(3, H, K, V)
    g = -drawn(3, H).exp() if kind == "per head" else -drawn(3, H, K).exp()
    bonus = drawn(H, K) if kind == "bonus" else None
    with plain_ops():
        wanted = gla_step(q, k, v, g, state, scale=0.3, bonus=bonus)
    for ours, theirs in zip(gla_step_kernel(q, k, v, g, state, 0.3, bonus), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("W", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_one_token_of_the_short_convolution(W, bias):
    from plait.ops.step_triton import conv_step_kernel

    x, weight, state = drawn(3, 310)[:, 5:305], drawn(300, W), drawn(3, W - 1, 300)
    given = drawn(300) if bias else None
    with plain_ops():
        wanted = short_conv_step(x, weight, given, state, activation="silu")
    for ours, theirs in zip(conv_step_kernel(x, weight, given, state, silu=True), wanted, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)
