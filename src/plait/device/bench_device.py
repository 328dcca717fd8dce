"""Where a benchmark runs, and what its times depend on: the device, and the versions of what is installed."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError, version

import torch

from plait import __version__
from plait.core.errors import UserError


def bench_device(given: str | None) -> torch.device:
    """The device given, checked to be available; by default the GPU if there is one, else the CPU."""
    here = torch.cuda.is_available()
    if given is not None and given.startswith("cuda") and not here:
        raise UserError("this machine has no CUDA device; leave out the device, or give cpu.")
    try:
        return torch.device(given or ("cuda" if here else "cpu"))
    except RuntimeError:
        raise UserError(f"'{given}' is not a device; give cpu or cuda.") from None


def bench_size(device: torch.device, batch: int | None, seq_len: int | None) -> tuple[int, int]:
    """Batch size and sequence length: as given, else a size that fills a GPU, or that a CPU finishes in seconds."""
    usual = (8, 4096) if device.type == "cuda" else (1, 256)
    return batch or usual[0], seq_len or usual[1]


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()


def bench_versions() -> dict[str, str]:
    """Versions of plait and of the installed packages that a kernel's speed depends on."""
    known = {package: _version(package) for package in ("torch", "triton", "flash-linear-attention")}
    return {"plait": __version__} | {package: found for package, found in known.items() if found is not None}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
