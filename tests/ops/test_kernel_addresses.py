"""Every address that a GPU kernel touches lies inside one of the tensors it was given: in Triton's interpreter alone.
`test_kernels.py` looks at every kernel, this at the recurrences in more shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from interpreted import INTERPRETED, slow_if_interpreted
from kernel_watch import Watch, watched
from torch import Tensor

from plait.ops.channel_delta import channel_delta_kernels
from plait.ops.delta import delta_kernels
from plait.ops.gla import gla_kernels
from plait.ops.scan_operator import scan_kernels

if not INTERPRETED:
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    seen = watched(monkeypatch)
    yield seen
    assert seen.accesses > 0


def run(op: Callable[..., tuple[Tensor, Tensor]], inputs: list[Tensor | None]) -> None:
    """Forward and backward."""
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    o, state = op(*leaves)
    torch.autograd.grad(o.sum() + state.sum(), [x for x in leaves if x is not None])


def draw(B: int, T: int, H: int, K: int, V: int, *, sliced: bool) -> tuple[Tensor, Tensor, Tensor]:
    """q, k and v; `sliced`: of one projection, with a neighbour on either side."""
    if not sliced:
        return torch.randn(B, T, H, K), F.normalize(torch.randn(B, T, H, K), dim=-1), torch.randn(B, T, H, V)
    whole = torch.randn(B, T, H, 5 + 2 * K + V + 3)
    _, q, k, v, _ = whole.split((5, K, K, V, 3), dim=-1)
    return q, k, v


SHAPES = [
    (1, 1, 1, 16, 16),
    *(pytest.param(shape, marks=slow_if_interpreted) for shape in ((2, 33, 2, 6, 20), (1, 65, 1, 40, 3))),
]


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_delta_rule(watch: Watch, shape: tuple[int, int, int, int, int], gated: bool, sliced: bool) -> None:
    B, T, H, K, V = shape
    q, k, v = draw(*shape, sliced=sliced)
    g = -torch.rand(B, T, H) if gated else None
    run(lambda *x: delta_kernels(*x, 0.5), [q, k, v, torch.rand(B, T, H), g, torch.randn(B, H, K, V)])


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_delta_rule_with_a_decay_per_channel(watch: Watch, shape: tuple[int, int, int, int, int], sliced: bool) -> None:
    B, T, H, K, V = shape
    q, k, v = draw(*shape, sliced=sliced)
    inputs = [q, k, k.clone(), v, -torch.rand(B, T, H, K), torch.randn(B, H, K, V)]
    run(lambda *x: channel_delta_kernels(*x, 0.5), inputs)


@pytest.mark.parametrize("sliced", [False, True])
@pytest.mark.parametrize("kind", ["channel", "head", "bonus"])
@pytest.mark.parametrize("shape", SHAPES)
def test_gated_linear_attention(watch: Watch, shape: tuple[int, int, int, int, int], kind: str, sliced: bool) -> None:
    B, T, H, K, V = shape
    q, k, v = draw(*shape, sliced=sliced)
    g = -torch.rand(B, T, H) if kind == "head" else -torch.rand(B, T, H, K)
    bonus = torch.randn(H, K) if kind == "bonus" else None
    run(
        lambda q, k, v, g, state, bonus: gla_kernels(q, k, v, g, state=state, bonus=bonus),
        [q, k, v, g, torch.randn(B, H, K, V), bonus],
    )


def test_an_access_outside_is_seen(watch: Watch) -> None:
    import triton
    import triton.language as tl
    from triton.runtime.errors import InterpreterError

    @triton.jit
    def copy(x, y, n, SIZE: tl.constexpr):
        i = tl.arange(0, SIZE)
        tl.store(y + i, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)

    whole = torch.zeros(16)
    copy[(1,)](whole[:8], torch.zeros(8), 8, SIZE=16)
    with pytest.raises(InterpreterError, match="copy reads"):
        copy[(1,)](whole[:8], torch.zeros(16), 9, SIZE=16)


@pytest.mark.parametrize("E", [52, pytest.param(244, marks=slow_if_interpreted)])
def test_selective_scan_of_stacked_models(watch: Watch, E: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Mamba in a fleet, as it was when a GPU reported an illegal access: 8 segments of a chunk forward, 4 of two chunks
    backward, each chunk in 8 parts, and 20 channels in the last block of 32."""
    from plait.ops import scan_triton

    M, B, T, N, L = 2, 1, 256, 16, 32
    forward, backward = scan_triton.tuning(N)
    monkeypatch.setattr(scan_triton, "ENOUGH", 4 * M * B * -(-E // backward.channels))
    assert [scan_triton._segments(M * B, T // L, E, tile) for tile in (forward, backward)] == [8, 4]
    u = torch.randn(M, B, T, E).bfloat16()
    inputs = [u, torch.rand(M, B, T, E), torch.randn(M, B, T, N), torch.randn(M, B, T, N)]
    inputs += [-torch.rand(M, N, E), torch.randn(M, E), torch.zeros(M, B, N, E)]
    run(lambda *x: scan_kernels(*x, L), inputs)


@pytest.mark.parametrize("target", [-1, 7, 10**6])
def test_a_target_that_is_no_token_is_not_looked_up(watch: Watch, target: int) -> None:
    from plait.ops.elementwise_triton import cross_entropy_rows

    logits, nll = torch.zeros(1, 8), torch.zeros(1)
    cross_entropy_rows(logits, torch.tensor([target]), nll, 7, -100, True)
    assert nll.isnan().all()
