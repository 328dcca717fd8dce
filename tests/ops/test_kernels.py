"""Every GPU kernel against its definition in float64, outputs and all gradients: at most 1e-5 off in fp32 and 1e-2 in
bf16, relative to the largest value of the same tensor.

The cases are in `tests/support/kernel_cases.py`. Memory holds NaN before it is written (`tests/conftest.py`), and no
kernel may leave the tensors it was given. A kernel that no case here runs fails the test, and so does a file of kernels
that no case names.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest
import torch
from interpreted import INTERPRETED
from kernel_cases import BOUNDS, CASES, FP32, results
from kernel_watch import watched
from torch import Tensor

import plait.ops


@pytest.mark.parametrize("files", CASES, ids="+".join)
def test_equals_its_definition(files: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    assert torch.empty(3).isnan().all()  # as all memory that kernels are given to write
    watch = watched(monkeypatch) if INTERPRETED else None
    for dtype in BOUNDS:
        for case in CASES[files](dtype):
            found = results(case.ours, case.inputs, case.gradients)
            wide = {name: x.double() for name, x in case.inputs.items()}
            bound = case.fp32 if dtype == FP32 else BOUNDS[dtype]
            for name, wanted in results(case.definition, wide, case.gradients).items():
                error = float((found[name] - wanted).abs().max() / wanted.abs().max())
                assert error <= bound, f"{name} of {sizes(case.inputs)} in {dtype}: {error:.1e}"
    if watch is not None:
        assert watch.accesses > 0
        assert not kernels_of(files) - watch.ran, "kernels that no case runs"


def sizes(inputs: dict[str, Tensor]) -> str:
    return ", ".join(f"{name} {tuple(x.shape)}" for name, x in inputs.items())


def kernels_of(files: tuple[str, ...]) -> set[tuple[str, str]]:
    """Kernels that are written in these files, and the functions that they call, as (module, name)."""
    from triton.runtime.interpreter import InterpretedFunction

    modules = [import_module(f"plait.ops.{file}") for file in files]
    functions = [x.fn for module in modules for x in vars(module).values() if isinstance(x, InterpretedFunction)]
    return {(x.__module__, x.__name__) for x in functions if x.__module__ in {module.__name__ for module in modules}}


def test_every_file_of_kernels_has_its_cases() -> None:
    (package,) = plait.ops.__path__
    root = Path(package).parent
    written = {path for path in root.rglob("*.py") if "@triton.jit" in path.read_text(encoding="utf-8")}
    assert written == {root / "ops" / f"{file}.py" for files in CASES for file in files}
