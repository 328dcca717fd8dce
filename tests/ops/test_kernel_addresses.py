"""Every address that a GPU kernel touches lies inside one of the tensors it was given: in Triton's interpreter alone.

A mask that lets one row too many through, a stride of another tensor or an offset behind the last chunk shows here,
also where the numbers read there happen not to matter.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from plait.ops.channel_delta import channel_delta_kernels
from plait.ops.delta import delta_kernels
from plait.ops.gla_operator import gla_kernels

interpreter = pytest.importorskip("triton.runtime.interpreter", reason="Triton is not installed")
if os.environ.get("TRITON_INTERPRET") != "1":
    pytest.skip("needs TRITON_INTERPRET=1", allow_module_level=True)

Range = tuple[int, int]


def extent(x: Tensor) -> Range:
    """First address of a tensor's elements, and the one behind its last."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() else 0
    return x.data_ptr(), x.data_ptr() + reach * x.element_size()


class Watch:
    """The tensors of the kernel that runs now, and how many accesses were looked at."""

    def __init__(self) -> None:
        self.kernel, self.accesses = "", 0
        self.ranges: list[Range] = []

    def enter(self, kernel: str, args: dict[str, Any]) -> None:
        self.kernel, self.ranges = kernel, [extent(x) for x in args.values() if isinstance(x, Tensor)]

    def look(self, ptrs: Any, mask: Any, what: str) -> None:
        """One access lies in one tensor: which one, its first address tells."""
        at = ptrs.data.reshape(-1)[np.broadcast_to(mask.data, ptrs.data.shape).reshape(-1).astype(bool)]
        if not at.size:
            return
        self.accesses += 1
        size = ptrs.dtype.scalar.element_ty.primitive_bitwidth // 8
        low, high = int(at.min()), int(at.max()) + size
        inside = any(begin <= low and high <= end for begin, end in self.ranges)
        assert inside, f"{self.kernel} {what}s from {low} to {high}, its tensors are {self.ranges}"


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    seen, builder, executor = Watch(), interpreter.InterpreterBuilder, interpreter.GridExecutor
    load, store, hosted = builder.create_masked_load, builder.create_masked_store, executor._init_args_hst

    def on_host(self: Any, args: Any, kwargs: Any) -> Any:
        args_hst, kwargs_hst = hosted(self, args, kwargs)
        seen.enter(self.fn.__name__, dict(zip(self.arg_names, args_hst, strict=False)) | kwargs_hst)
        return args_hst, kwargs_hst

    def loads(self: Any, ptrs: Any, mask: Any, *rest: Any) -> Any:
        seen.look(ptrs, mask, "read")
        return load(self, ptrs, mask, *rest)

    def stores(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        seen.look(ptrs, mask, "write")
        return store(self, ptrs, value, mask, *rest)

    monkeypatch.setattr(executor, "_init_args_hst", on_host)
    monkeypatch.setattr(builder, "create_masked_load", loads)
    monkeypatch.setattr(builder, "create_masked_store", stores)
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


SHAPES = [(1, 1, 1, 16, 16), (2, 33, 2, 6, 20), (1, 65, 1, 40, 3)]


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

    @triton.jit
    def copy(x, y, n, SIZE: tl.constexpr):
        i = tl.arange(0, SIZE)
        tl.store(y + i, tl.load(x + i, mask=i < n, other=0.0), mask=i < n)

    whole = torch.zeros(16)
    copy[(1,)](whole[:8], torch.zeros(8), 8, SIZE=16)
    with pytest.raises(interpreter.InterpreterError, match="copy reads"):
        copy[(1,)](whole[:8], torch.zeros(16), 9, SIZE=16)
