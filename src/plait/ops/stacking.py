"""Shared by hand-written gradients and kernels: a model axis for vmap, and addressing.

A hand-written kernel writes to buffers in place, which vmap cannot trace. So its tensors have a leading axis M of
stacked models (1 outside vmap), or a batch axis of independent sequences, and vmap only makes that axis longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from typing import Any

import torch
from torch import Tensor


def keep_signature(function: type[torch.autograd.Function]) -> None:
    """Compute the signature of `forward` once. Torch asks for it at every call, which otherwise takes a fifteenth of a
    small model's training step."""
    function.forward.__signature__ = signature(function.forward)  # type: ignore[attr-defined]


class StackedFunction(torch.autograd.Function):
    """A function of tensors that all have a leading model axis, along which vmap stacks."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        keep_signature(cls)

    @classmethod
    def vmap(cls, info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        outs = cls.apply(*fold_replicas(args, in_dims, info.batch_size))
        return tuple(unfold_replicas(out, info.batch_size) for out in outs), (0,) * len(outs)


def fold_replicas(args: Sequence[Any], in_dims: Sequence[int | None], replicas: int) -> Iterator[Any]:
    """Merge the vmapped axis into the first one; a tensor without it is repeated. Options pass through."""
    for arg, dim in zip(args, in_dims, strict=True):
        if isinstance(arg, Tensor):
            yield (arg.expand(replicas, *arg.shape) if dim is None else arg.movedim(dim, 0)).flatten(0, 1)
        else:
            yield arg


def unfold_replicas(x: Tensor, replicas: int) -> Tensor:
    """Split the vmapped axis from the first one again."""
    unfolded: Tensor = x.unflatten(0, (replicas, -1))
    return unfolded


def register_stacked(operator: Any, fake: Callable[..., Any]) -> None:
    """Complete a custom operator on tensors with a leading batch axis: `fake` gives its output shapes to a compiler,
    and vmap makes the batch longer."""

    def vmap(info: Any, in_dims: tuple[int | None, ...], *args: Any) -> tuple[Any, Any]:
        outputs = operator(*fold_replicas(args, in_dims, info.batch_size))
        if isinstance(outputs, Tensor):
            return unfold_replicas(outputs, info.batch_size), 0
        return tuple(unfold_replicas(x, info.batch_size) for x in outputs), (0,) * len(outputs)

    operator.register_fake(fake)
    operator.register_vmap(vmap)


#: Limit of programs along the second and third axis of a GPU's grid, which kernels use for batch × heads.
MOST_PROGRAMS = 65535


def in_batch_slices(run: Callable[..., tuple[Tensor, ...]], heads: int, *args: Any) -> tuple[Any, ...]:
    """`run(*args)`, in slices of the batch if batch × heads exceeds a grid's limit. All tensors, inputs and outputs,
    begin with the batch or with batch · heads."""
    batch, most = args[0].shape[0], max(1, MOST_PROGRAMS // heads)
    if batch <= most:
        return run(*args)

    def rows(x: Any, first: int) -> Any:
        if not isinstance(x, Tensor):
            return x
        per_sequence = x.shape[0] // batch
        return x[first * per_sequence : (first + most) * per_sequence]

    parts = [run(*(rows(x, first) for x in args)) for first in range(0, batch, most)]
    return tuple(torch.cat(pieces) for pieces in zip(*parts, strict=True))


def in_reach(*tensors_BTHX: Tensor) -> bool:
    """Whether chunked kernels can address all of these: offsets within a sequence fit 32 bits."""
    T, H = tensors_BTHX[0].shape[1], max(x.shape[2] for x in tensors_BTHX)
    wide = max(max(x.stride(1), H * x.shape[3]) for x in tensors_BTHX)
    return (T + 64) * wide < 2**31


def with_dense_rows(x: Tensor) -> Tensor:
    """x with its last dimension contiguous, which is all that kernels need: a slice of a joint projection is not
    copied."""
    return x if x.stride(-1) == 1 else x.contiguous()


def strides_of(*tensors: Tensor) -> list[int]:
    """Those of the first three dimensions, as kernels take them; the last one is dense."""
    return [stride for x in tensors for stride in x.stride()[:3]]


def dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()
