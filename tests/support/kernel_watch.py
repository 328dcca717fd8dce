"""What kernels do in Triton's interpreter: which of them ran, and that every address they touch lies inside one of the
tensors they were given.

A mask that lets one row too many through, a stride of another tensor or an offset behind the last chunk shows here,
also where the numbers read there happen not to matter.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from torch import Tensor

Range = tuple[int, int]


def extent(x: Tensor) -> Range:
    """First address of a tensor's elements, and the one behind its last."""
    reach = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True)) + 1 if x.numel() else 0
    return x.data_ptr(), x.data_ptr() + reach * x.element_size()


class Watch:
    """The tensors of the kernel that runs now, how many accesses were looked at, and the functions that ran so far:
    kernels and what they call, as (module, name)."""

    def __init__(self) -> None:
        self.kernel, self.accesses = "", 0
        self.ranges: list[Range] = []
        self.ran: set[tuple[str, str]] = set()

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


def watched(monkeypatch: pytest.MonkeyPatch) -> Watch:
    from triton.runtime.interpreter import GridExecutor, InterpretedFunction, InterpreterBuilder

    seen = Watch()
    load, store = InterpreterBuilder.create_masked_load, InterpreterBuilder.create_masked_store
    hosted, launch, call = GridExecutor._init_args_hst, InterpretedFunction.run, InterpretedFunction.__call__

    def note(function: Any) -> None:
        seen.ran.add((function.fn.__module__, function.fn.__name__))

    def launches(self: Any, *args: Any, **options: Any) -> Any:
        note(self)
        return launch(self, *args, **options)

    def calls(self: Any, *args: Any, **options: Any) -> Any:
        note(self)
        return call(self, *args, **options)

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

    monkeypatch.setattr(InterpretedFunction, "run", launches)
    monkeypatch.setattr(InterpretedFunction, "__call__", calls)
    monkeypatch.setattr(GridExecutor, "_init_args_hst", on_host)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_load", loads)
    monkeypatch.setattr(InterpreterBuilder, "create_masked_store", stores)
    return seen
