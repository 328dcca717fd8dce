"""Attention with sinks: against the definition written out, and without sinks against softmax attention."""

from __future__ import annotations

import math

import pytest
import torch

from plait.ops import attention as attention_module
from plait.ops.attention import attention_reference, sink_attention


def drawn(M: int, N: int, H: int = 4, G: int = 2, D: int = 5) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(M + N)
    shapes = (2, M, H, D), (2, N, G, D), (2, N, G, D), (H,)
    return tuple(torch.randn(shape, dtype=torch.float64) for shape in shapes)


@pytest.mark.parametrize("window", [0, 3])
def test_one_more_column_that_brings_nothing(window: int) -> None:
    q, k, v, sink = drawn(6, 9)
    o = sink_attention(q, k, v, sink, window=window)
    for b, i, h in [(0, 0, 0), (1, 3, 1), (0, 5, 3)]:
        seen = [j for j in range(9) if j <= i + 3 and (not window or j > i + 3 - window)]
        weights = [math.exp(float(q[b, i, h] @ k[b, j, h // 2]) / 5**0.5) for j in seen]
        total = sum(weights) + math.exp(float(sink[h]))
        want = sum(w / total * v[b, j, h // 2] for w, j in zip(weights, seen, strict=True))
        torch.testing.assert_close(o[b, i, h], want)


@pytest.mark.parametrize("window", [0, 4, 300])
@pytest.mark.parametrize("pad", [None, [0, 3]])
def test_a_sink_of_no_weight_is_softmax_attention(monkeypatch, window: int, pad: list[int] | None) -> None:
    monkeypatch.setattr(attention_module, "SINK_BLOCK", 8)  # several blocks, the last one short
    q, k, v, _ = drawn(21, 30)
    pad_B = None if pad is None else torch.tensor(pad)
    o = sink_attention(q, k, v, torch.full((4,), -1e9, dtype=torch.float64), window=window, pad_B=pad_B)
    torch.testing.assert_close(o, attention_reference(q, k, v, window=window, pad_B=pad_B))


def test_a_strong_sink_takes_all() -> None:
    q, k, v, _ = drawn(5, 5)
    assert sink_attention(q, k, v, torch.full((4,), 50.0, dtype=torch.float64)).abs().max() < 1e-15
