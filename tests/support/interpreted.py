"""Where the GPU's kernels run in the tests: on a GPU, or in Triton's interpreter, which `tests/conftest.py` asks for
where there is none. Importing this skips the importing file where they can run in neither.

The interpreter holds bf16 as 16 bits and computes with them as if they were whole numbers. Here it computes in fp32
instead, and rounds what it stores as bf16 to the nearest, as a GPU does.
"""

from __future__ import annotations

import os
from functools import wraps
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed (it comes with CUDA builds of torch)")
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not torch.cuda.is_available() and not INTERPRETED:
    pytest.skip("needs a GPU or TRITON_INTERPRET=1", allow_module_level=True)
DEVICE = "cpu" if INTERPRETED else "cuda"

needs_gpu = pytest.mark.skipif(INTERPRETED, reason="needs a GPU")
#: What a GPU does in no time and the interpreter does not.
slow_if_interpreted = [pytest.mark.slow] if INTERPRETED else []


def teach_bf16() -> None:
    import triton.language as tl
    from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

    def is_bf16(x: Any) -> bool:
        return isinstance(x, TensorHandle) and x.dtype.scalar == tl.bfloat16

    def widened(x: Any) -> Any:
        if not is_bf16(x):
            return x
        assert x.data.dtype == np.uint16
        return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def rounded(x: Any) -> Any:
        narrow = torch.from_numpy(np.array(x.data, np.float32)).bfloat16()
        return TensorHandle(narrow.view(torch.uint16).numpy(), tl.bfloat16)

    def in_fp32(compute: Any) -> Any:
        """An operation on numbers; comparisons give none."""

        @wraps(compute)
        def run(self: Any, *args: Any) -> Any:
            if not any(map(is_bf16, args)):
                return compute(self, *args)
            found = compute(self, *map(widened, args))
            return rounded(found) if found.data.dtype == np.float32 else found

        return run

    def multiply_matrices(self: Any, a: Any, b: Any, d: Any, *precision: Any) -> Any:
        return dot(self, widened(a), widened(b), d, *precision)  # d, the sum, is fp32

    def cast(self: Any, x: Any, to: Any) -> Any:
        x = widened(x)
        return rounded(x) if to.scalar == tl.bfloat16 and x.dtype.scalar == tl.float32 else cast_others(self, x, to)

    def constant(self: Any, value: float) -> Any:
        return rounded(self.get_fp32(value))

    dot, cast_others = InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl
    InterpreterBuilder.create_dot, InterpreterBuilder.cast_impl = multiply_matrices, cast
    InterpreterBuilder.get_bf16 = constant
    for operation in ("unary_op", "binary_op", "ternary_op"):
        setattr(InterpreterBuilder, operation, in_fp32(getattr(InterpreterBuilder, operation)))


if INTERPRETED:
    teach_bf16()
