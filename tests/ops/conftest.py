"""Independent code to check against (the plain loops that flash-linear-attention keeps beside its kernels), and a GPU
that is not there."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from plait.ops import gpu

#: Makes this a machine with a GPU of this compute capability, one of AMD's if `hip` has a version.
PretendGpu = Callable[..., None]


@pytest.fixture
def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> PretendGpu:
    def pretend(capability: tuple[int, int], *, hip: str | None = None, triton: bool = True) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: capability)
        monkeypatch.setattr(torch.version, "hip", hip)
        monkeypatch.setattr(gpu, "_has_triton", lambda: triton)

    return pretend


@pytest.fixture
def fla_naive(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """Load one file of `fla.ops` by its path, e.g. fla_naive("gla/naive.py"); skips where fla is not installed.

    Importing the package instead would load all of its kernels, and needs Triton. The files' chunked variants need
    einops, their loops do not: where it is missing an empty stand-in lets the import through.
    """

    def load(path: str) -> ModuleType:
        package = importlib.util.find_spec("fla")
        if package is None or not package.submodule_search_locations:
            pytest.skip("flash-linear-attention is not installed")
        if "einops" not in sys.modules and importlib.util.find_spec("einops") is None:
            stand_in = ModuleType("einops")
            stand_in.rearrange = stand_in.repeat = stand_in.reduce = None  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, "einops", stand_in)
        file = Path(package.submodule_search_locations[0]) / "ops" / path
        spec = importlib.util.spec_from_file_location(f"fla_naive_{path.replace('/', '_')[:-3]}", file)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load
