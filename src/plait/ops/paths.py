"""Which path an op takes: its hand-written fast path, or its plain form in torch's own operations.

The plain form is used inside a compiled graph (the compiler fuses it, and ignores custom gradients under
`torch.func.grad`), and inside `plain_ops()`, which allows second derivatives and comparisons. Inside `recorded_ops()` a
graph is being traced for the compiler: ops take their plain form there as well, unless their kernel is a custom
operator, which is one node of the graph. `watched_paths()` reports which path each op took.

Recurrences and convolutions keep their precision under autocast (`full_precision`): it would run the matrix products of
a chunked form in half precision, and their errors would propagate through the state for the rest of the sequence. MAD
(arXiv:2403.17844, App. C.3) also keeps full precision there.

On a CPU, fast paths work through their tensors in blocks that stay in cache (`cache_blocks`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import reduce, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.ops.gpu import multiplies_bf16, runs_kernels

LONGEST_IN_GRAPH = 256  # longest sequence whose ops the compiler may fuse itself, including stacked ones (a fleet's)

_plain: ContextVar[bool] = ContextVar("plait_plain_ops", default=False)
_recorded: ContextVar[bool] = ContextVar("plait_recorded_ops", default=False)
_watched: ContextVar[dict[str, str] | None] = ContextVar("plait_watched_paths", default=None)


@contextmanager
def plain_ops() -> Iterator[None]:
    """Run every op in its plain form: slower, but differentiable any number of times."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


@contextmanager
def recorded_ops() -> Iterator[None]:
    """Run every op in the form that a traced graph should contain."""
    token = _recorded.set(True)
    try:
        yield
    finally:
        _recorded.reset(token)


@contextmanager
def watched_paths() -> Iterator[dict[str, str]]:
    """A dictionary that fills as ops run: op → the path it took last."""
    taken: dict[str, str] = {}
    token = _watched.set(taken)
    try:
        yield taken
    finally:
        _watched.reset(token)


def took(op: str, path: str) -> str:
    """Report the path an op takes to `watched_paths()`, and return it."""
    if not torch.compiler.is_compiling():
        taken = _watched.get()
        if taken is not None:
            taken[op] = path
    return path


def plain_asked() -> bool:
    """Whether this runs inside `plain_ops()`; not checked in a graph, which must not depend on it."""
    return not torch.compiler.is_compiling() and _plain.get()


def recording() -> bool:
    """Whether this runs inside `recorded_ops()`."""
    return not torch.compiler.is_compiling() and _recorded.get()


def in_graph() -> bool:
    """Whether the current operations become part of a graph."""
    return torch.compiler.is_compiling() or _recorded.get()


def plain_wanted() -> bool:
    """Whether an op with a hand-written gradient that is no custom operator should take its plain form."""
    return in_graph() or _plain.get()


def has_kernels(x: Tensor) -> bool:
    """Whether our kernels run where x is."""
    return x.is_cuda and runs_kernels(x.device.index or 0)


def step_kernels_take(*tensors: Tensor) -> bool:
    """Whether one token of generation may use the kernels of `plait.ops.step_triton`: on a GPU, without gradients and
    not while a graph is compiled."""
    wanted = torch.is_grad_enabled() or in_graph() or plain_asked()
    on_gpu = all(x.is_cuda and x.dtype != torch.float64 for x in tensors)
    return not wanted and on_gpu and has_kernels(tensors[0])  # asked once: a step has many operators of little work


Params = ParamSpec("Params")
Result = TypeVar("Result")


def full_precision(op: Callable[Params, Result]) -> Callable[Params, Result]:
    """Run `op` with all inputs in the widest dtype among them, outside autocast."""

    @wraps(op)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        first = args[0]
        assert isinstance(first, Tensor)
        dtypes = {x.dtype for x in (*args, *kwargs.values()) if _floating(x)}  # type: ignore[attr-defined]
        if len(dtypes) == 1 and not _under_autocast(first):
            return op(*args, **kwargs)
        widest = reduce(torch.promote_types, dtypes)

        def cast(x: Any) -> Any:
            return x.to(widest) if _floating(x) else x

        with outside_autocast(first):
            return op(*map(cast, args), **{key: cast(x) for key, x in kwargs.items()})

    return run


def outside_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A context in which operations keep the dtypes of their inputs."""
    return torch.autocast(x.device.type, enabled=False) if _under_autocast(x) else nullcontext()


def precision_on(device: str | torch.device) -> str:
    """The precision of trainings on a device: bf16 on a GPU that multiplies it, otherwise fp32."""
    try:
        place = torch.device(device)
    except RuntimeError:
        raise UserError(f"device {device}: known: cpu, mps, cuda, or one GPU of several, such as cuda:1.") from None
    return "bf16" if place.type == "cuda" and multiplies_bf16(place.index or 0) else "fp32"


def autocast_on(device: torch.device) -> torch.autocast:
    """Matrix products in that precision; ops that need full precision ensure it themselves."""
    half = device.type == "cuda" and multiplies_bf16(device.index or 0)
    return torch.autocast(device.type, torch.bfloat16, enabled=half)


def _under_autocast(x: Tensor) -> bool:
    return x.device.type != "meta" and torch.is_autocast_enabled(x.device.type)


def autocast_dtype(x: Tensor) -> torch.dtype:
    """The dtype that autocast would give x in a matrix product; without autocast, x's own."""
    if x.dtype == torch.float64 or not _under_autocast(x):
        return x.dtype
    return torch.get_autocast_dtype(x.device.type)


def _floating(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()


# Numbers in one block of a kernel's working tensor. On a CPU a few blocks should stay in cache (measured: the optimum
# is flat around 2^17); elsewhere launches cost more than cache misses, so blocks are as large as memory allows.
_BLOCK_ON_CPU = 2**17
_BLOCK_ELSEWHERE = 2**26


def cache_blocks(
    n_models: int, batch: int, numbers_per_row: int, device: torch.device
) -> Iterator[tuple[slice, slice]]:
    """Split models × batch into slices of about a block, given the numbers in a batch row. The first is the largest."""
    budget = _BLOCK_ON_CPU if device.type == "cpu" else _BLOCK_ELSEWHERE
    rows = min(batch, max(1, budget // numbers_per_row))
    models = min(n_models, max(1, budget // (numbers_per_row * batch)))
    for m in range(0, n_models, models):
        for b in range(0, batch, rows):
            yield slice(m, min(m + models, n_models)), slice(b, min(b + rows, batch))
