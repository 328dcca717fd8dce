"""What hand-written gradients share: a model axis for vmap, and blocks of a size that stays in cache.

A hand-written kernel fills buffers in place, which vmap cannot see through. So its tensors carry a leading axis M of
stacked models (1 outside vmap), and vmapping it only makes that axis longer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

# Numbers in one block of a kernel's working tensor. On a CPU a few blocks should stay in cache (measured: the optimum
# is flat around 2^17); elsewhere launches cost more than cache misses, so blocks are as large as memory allows.
_BLOCK_ON_CPU = 2**17
_BLOCK_ELSEWHERE = 2**26


class StackedFunction(torch.autograd.Function):
    """A function of tensors that all have a leading model axis, along which vmap stacks."""

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        outs = cls.apply(*fold_members(args, in_dims, info.batch_size))
        return tuple(unfold_members(out, info.batch_size) for out in outs), (0,) * len(outs)


def fold_members(args: Sequence[Any], in_dims: Sequence[int | None], members: int) -> Iterator[Any]:
    """Merge the vmapped axis into the first one; a tensor without it is repeated. Options pass through."""
    for arg, dim in zip(args, in_dims, strict=True):
        if isinstance(arg, Tensor):
            yield (arg.expand(members, *arg.shape) if dim is None else arg.movedim(dim, 0)).flatten(0, 1)
        else:
            yield arg


def unfold_members(x: Tensor, members: int) -> Tensor:
    unfolded: Tensor = x.unflatten(0, (members, -1))
    return unfolded


def cache_blocks(
    n_models: int, batch: int, numbers_per_row: int, device: torch.device
) -> Iterator[tuple[slice, slice]]:
    """Cut models × batch into slices of about a block, given the numbers in a batch row. The first is the largest."""
    budget = _BLOCK_ON_CPU if device.type == "cpu" else _BLOCK_ELSEWHERE
    rows = min(batch, max(1, budget // numbers_per_row))
    models = min(n_models, max(1, budget // (numbers_per_row * batch)))
    for m in range(0, n_models, models):
        for b in range(0, batch, rows):
            yield slice(m, min(m + models, n_models)), slice(b, min(b + rows, batch))
