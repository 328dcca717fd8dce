"""What a GPU can run: our kernels, bf16 products, torch's compiler.

Triton compiles the kernels for NVIDIA's GPUs from Ampere on (compute capability 8.0), the first with bf16 products.
Everywhere else ops take their plain form in torch's own operations, trainings are in fp32 where the GPU lacks bf16, and
nothing is compiled where torch's compiler does not work: slower, with the same results. GPUs are given by their number.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib.util import find_spec

import torch

VOLTA, AMPERE, HOPPER = (7, 0), (8, 0), (9, 0)  # compute capabilities


def _constant_in_graphs(function: Callable[[int], bool]) -> Callable[[int], bool]:
    """Like `torch.compiler.assume_constant_result`, whose import of the compiler takes as long as importing torch."""
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def why_no_kernels(gpu: int) -> str:
    """Why our kernels do not run on this GPU; empty if they do."""
    if torch.version.hip is not None:
        return "plait's kernels are for NVIDIA's GPUs"
    if not _has_triton():
        return "Triton is not installed"
    major, minor = torch.cuda.get_device_capability(gpu)
    if (major, minor) < AMPERE:
        return f"plait's kernels need compute capability 8.0, this GPU has {major}.{minor}"
    return ""


@_constant_in_graphs
def runs_kernels(gpu: int) -> bool:
    return not why_no_kernels(gpu)


@_constant_in_graphs
def is_hopper(gpu: int) -> bool:
    return _is_nvidia(gpu, HOPPER) and torch.cuda.get_device_capability(gpu) == HOPPER


@_constant_in_graphs
def has_cudnn_attention(gpu: int) -> bool:
    """Whether cuDNN's attention is that of Hopper or newer, which was measured to be faster than others."""
    return torch.backends.cudnn.is_available() and _is_nvidia(gpu, HOPPER)


@_constant_in_graphs
def has_large_shared_memory(gpu: int) -> bool:
    """Whether a multiprocessor has the shared memory of a data centre's GPU, 164 KiB or more; others have 100."""
    return torch.cuda.get_device_properties(gpu).shared_memory_per_multiprocessor >= 164 * 2**10


@_constant_in_graphs
def multiplies_bf16(gpu: int) -> bool:
    """True as well where there is no GPU: a training may be planned for another machine's."""
    return not torch.cuda.is_available() or torch.version.hip is not None or _is_nvidia(gpu, AMPERE)


def compiler_on(device: torch.device) -> bool:
    """Whether torch's compiler works on this device, if it is a GPU."""
    if device.type != "cuda" or not _has_triton():
        return False
    return torch.version.hip is not None or _is_nvidia(device.index or 0, VOLTA)


def _is_nvidia(gpu: int, least: tuple[int, int]) -> bool:
    """Whether this GPU is one of NVIDIA's of at least this compute capability. AMD's count differently."""
    return torch.version.hip is None and torch.cuda.get_device_capability(gpu) >= least


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None
