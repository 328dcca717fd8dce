from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.ops.relative import relative_attention, relative_attention_reference, sinusoid


def draw(M: int, N: int, *, clamp: int = 0, H: int = 2, D: int = 4) -> list[Tensor]:
    generator = torch.Generator().manual_seed(M * 1000 + N)
    L = clamp + 1 if clamp else N
    shapes = [(2, M, H, D), (2, N, H, D), (2, N, H, D), (L, H, D), (H, D), (H, D)]
    return [torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]


@pytest.mark.parametrize(("M", "N"), [(1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (1, 9), (5, 64), (40, 65)])
@pytest.mark.parametrize(
    "options", [{}, {"window": 1}, {"window": 7}, {"clamp": 3}, {"clamp": 90, "window": 7}], ids=str
)
def test_shift_equals_gather(M: int, N: int, options: dict[str, Any]) -> None:
    inputs = draw(M, N, clamp=options.get("clamp", 0))
    results = []
    for run in (relative_attention, relative_attention_reference):
        o = run(*inputs, **options)
        results.append((o, torch.autograd.grad((o * torch.linspace(-1, 2, o.numel()).view_as(o)).sum(), inputs)))
    torch.testing.assert_close(results[0], results[1])


def test_reference_against_the_definition_in_loops() -> None:
    M, N, window, clamp = 3, 6, 4, 2
    q, k, values, r, u, v = (x.detach() for x in draw(M, N, clamp=clamp))
    o = relative_attention_reference(q, k, values, r, u, v, window=window, clamp=clamp)
    for i in range(M):
        for h in range(2):
            position = N - M + i
            seen = [j for j in range(N) if 0 <= position - j < window]
            weights = []
            for j in seen:
                content = (q[1, i, h] + u[h]) @ k[1, j, h]
                place = (q[1, i, h] + v[h]) @ r[min(position - j, clamp), h]
                weights.append(math.exp(float(content + place) / 2))
            expected = sum((w * values[1, j, h] for w, j in zip(weights, seen, strict=True)), torch.zeros(4))
            torch.testing.assert_close(o[1, i, h], expected / sum(weights))


def test_memory_gives_what_one_long_segment_gives() -> None:
    """Queries of the second half, with the first half as memory, are the second half of the whole."""
    q, k, values, r, u, v = draw(20, 20)
    whole = relative_attention(q, k, values, r, u, v)
    torch.testing.assert_close(relative_attention(q[:, 8:], k, values, r, u, v), whole[:, 8:])


@pytest.mark.parametrize("options", [{}, {"window": 5}, {"clamp": 3}, {"clamp": 4, "window": 3}], ids=str)
@pytest.mark.parametrize("M", [1, 4, 11])
def test_padded_rows_are_what_they_are_alone(M: int, options: dict[str, Any]) -> None:
    q, k, values, r, u, v = draw(M, 11, clamp=options.get("clamp", 0))
    pad_B = torch.tensor([0, 6])
    for run in (relative_attention, relative_attention_reference):
        o = run(q, k, values, r, u, v, pad_B=pad_B, **options)
        assert bool(o.isfinite().all())
        torch.testing.assert_close(o[:1], run(q[:1], k[:1], values[:1], r, u, v, **options))
        real = min(M, 5)
        alone = run(q[1:, -real:], k[1:, 6:], values[1:, 6:], r, u, v, **options)
        torch.testing.assert_close(o[1:, -real:], alone)


def test_gradcheck() -> None:
    assert torch.autograd.gradcheck(lambda *x: relative_attention(*x, window=3), draw(3, 5, H=1, D=2))


def test_members_under_vmap() -> None:
    stacked = [torch.stack([x.detach(), 2 * x.detach()]) for x in draw(5, 9)]
    step = torch.func.grad_and_value(lambda *x: relative_attention(*x).square().sum(), argnums=tuple(range(6)))
    gradients, _ = torch.func.vmap(step)(*stacked)
    alone, _ = step(*(x[1] for x in stacked))
    torch.testing.assert_close(tuple(g[1] for g in gradients), alone)


def test_sinusoid() -> None:
    table = sinusoid(torch.arange(5), 4)
    assert table.shape == (5, 4)
    expected = [math.sin(3), math.sin(3 / 100), math.cos(3), math.cos(3 / 100)]
    torch.testing.assert_close(table[3], torch.tensor(expected))
    assert sinusoid(torch.arange(3.0, dtype=torch.float64), 2).dtype == torch.float64
    with pytest.raises(UserError, match="even width"):
        sinusoid(torch.arange(5), 3)


def test_mistakes_are_named() -> None:
    q, k, values, r, u, v = draw(4, 6)
    with pytest.raises(UserError, match="5 distance embeddings, but 6"):
        relative_attention(q, k, values, r[:5], u, v)
    with pytest.raises(UserError, match="4 queries but only 3"):
        relative_attention(q, k[:, :3], values[:, :3], r, u, v)
    with pytest.raises(UserError, match="window=-1"):
        relative_attention(q, k, values, r, u, v, window=-1)
