"""What hand-written gradients share: a model axis for vmap, and blocks of a size that stays in cache.

A hand-written kernel fills buffers in place, which vmap cannot see through. So its tensors carry a leading axis M of
stacked models (1 outside vmap), and vmapping it only makes that axis longer.
"""

from __future__ import annotations

from collections.abc import Iterator
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
        size = info.batch_size
        folded = [_fold(arg, dim, size) for arg, dim in zip(args, in_dims, strict=True)]
        outs = cls.apply(*folded)
        return tuple(out.unflatten(0, (size, -1)) for out in outs), (0,) * len(outs)


def _fold(arg: Any, dim: int | None, size: int) -> Any:
    """Merge the vmapped axis into the model axis; a tensor without one is repeated. Options pass through."""
    if not isinstance(arg, Tensor):
        return arg
    return (arg.expand(size, *arg.shape) if dim is None else arg.movedim(dim, 0)).flatten(0, 1)


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
