"""Which way an op goes: its hand-written fast path, or its plain form.

The plain form runs where it must: inside a compiled graph (the compiler fuses it, and does not see hand-written
gradients under `torch.func.grad`), and inside `plain_ops()`, which gives second derivatives and a path to compare with.
Inside `recorded_ops()` a graph is being recorded for the compiler: ops take their plain form, too, unless they have a
kernel that is an operator of its own, which the graph holds as it is.

Recurrences and convolutions keep their precision under autocast.

Autocast would run the matrix products of a chunked form in half precision, and their errors would travel through the
state for the rest of the sequence. MAD (arXiv:2403.17844, App. C.3) keeps full precision there; so do these ops.

What hand-written gradients share: a model axis for vmap, and blocks of a size that stays in cache.

A hand-written kernel fills buffers in place, which vmap cannot see through. So its tensors carry a leading axis M of
stacked models (1 outside vmap), and vmapping it only makes that axis longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import reduce, wraps
from inspect import signature
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

LONGEST_IN_GRAPH = 256  # tokens of a sequence whose ops a compiler may fuse itself, stacked ones (a fleet's) too

_plain: ContextVar[bool] = ContextVar("plait_plain_ops", default=False)
_recorded: ContextVar[bool] = ContextVar("plait_recorded_ops", default=False)
_watched: ContextVar[dict[str, str] | None] = ContextVar("plait_watched_paths", default=None)


@contextmanager
def plain_ops() -> Iterator[None]:
    """Every op in its plain form: slower, and differentiable as often as wanted."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


@contextmanager
def recorded_ops() -> Iterator[None]:
    """Every op in the form that a recorded graph should hold."""
    token = _recorded.set(True)
    try:
        yield
    finally:
        _recorded.reset(token)


@contextmanager
def watched_paths() -> Iterator[dict[str, str]]:
    """Filled as ops run: op → the path it took last."""
    taken: dict[str, str] = {}
    token = _watched.set(taken)
    try:
        yield taken
    finally:
        _watched.reset(token)


def took(op: str, path: str) -> str:
    """Note which path an op takes, for whoever watches; returns it."""
    if not torch.compiler.is_compiling():
        taken = _watched.get()
        if taken is not None:
            taken[op] = path
    return path


def plain_asked() -> bool:
    """Whether this runs inside `plain_ops()`; never asked of a graph, which must not depend on it."""
    return not torch.compiler.is_compiling() and _plain.get()


def recording() -> bool:
    """Whether this runs inside `recorded_ops()`."""
    return not torch.compiler.is_compiling() and _recorded.get()


def in_graph() -> bool:
    """Whether what runs becomes part of a graph."""
    return torch.compiler.is_compiling() or _recorded.get()


def plain_wanted(*, operator: bool = False) -> bool:
    """Whether an op with a hand-written gradient should take its plain form. `operator`: its kernel is one here."""
    if torch.compiler.is_compiling() or _plain.get():
        return True
    return _recorded.get() and not operator


Params = ParamSpec("Params")
Result = TypeVar("Result")


def full_precision(op: Callable[Params, Result]) -> Callable[Params, Result]:
    """Under autocast: run `op` outside of it, on inputs of the widest dtype among them. Otherwise leave it alone."""

    @wraps(op)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        first = args[0]
        assert isinstance(first, Tensor)
        device = first.device.type
        if device == "meta" or not torch.is_autocast_enabled(device):
            return op(*args, **kwargs)
        given = [x for x in (*args, *kwargs.values()) if _floating(x)]
        widest = reduce(torch.promote_types, (x.dtype for x in given))  # type: ignore[attr-defined]

        def cast(x: Any) -> Any:
            return x.to(widest) if _floating(x) else x

        with torch.autocast(device, enabled=False):
            return op(*map(cast, args), **{key: cast(x) for key, x in kwargs.items()})

    return run


def autocast_dtype(x: Tensor) -> torch.dtype:
    """What autocast would make of x in a matrix product; without autocast its own dtype."""
    device = x.device.type
    if device == "meta" or x.dtype == torch.float64 or not torch.is_autocast_enabled(device):
        return x.dtype
    return torch.get_autocast_dtype(device)


def _floating(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


# Numbers in one block of a kernel's working tensor. On a CPU a few blocks should stay in cache (measured: the optimum
# is flat around 2^17); elsewhere launches cost more than cache misses, so blocks are as large as memory allows.
_BLOCK_ON_CPU = 2**17
_BLOCK_ELSEWHERE = 2**26


def keep_signature(function: type[torch.autograd.Function]) -> None:
    """Torch asks for it at each call, a fifteenth of a small model's step where it is made each time."""
    function.forward.__signature__ = signature(function.forward)  # type: ignore[attr-defined]


class StackedFunction(torch.autograd.Function):
    """A function of tensors that all have a leading model axis, along which vmap stacks."""

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        keep_signature(cls)

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


#: Programs along the second and third axis of a GPU's grid, where kernels have batch × heads.
MOST_PROGRAMS = 65535


def in_reach(*tensors_BTHX: Tensor) -> bool:
    """Whether kernels of chunks reach all of these: a program for every sequence and head, and offsets within a
    sequence in 32 bits."""
    B, T, H = tensors_BTHX[0].shape[0], tensors_BTHX[0].shape[1], max(x.shape[2] for x in tensors_BTHX)
    wide = max(max(x.stride(1), H * x.shape[3]) for x in tensors_BTHX)
    return B * H <= MOST_PROGRAMS and (T + 64) * wide < 2**31


def with_dense_rows(x: Tensor) -> Tensor:
    """Any strides but the last: a slice of a fused projection needs no copy."""
    return x if x.stride(-1) == 1 else x.contiguous()


def dense(x: Tensor | None) -> Tensor | None:
    return None if x is None else x.contiguous()
