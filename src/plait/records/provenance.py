"""What surrounds a result: versions, source code, hardware, time. Nothing that tells where it ran: no host, no path."""

from __future__ import annotations

import hashlib
import os
import platform
import sys
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import plait


def provenance_of(started: float, seconds: float) -> dict[str, Any]:
    """The surroundings of something that began at `started` (as `time.time()` counts) and took so many seconds."""
    return {
        "started": datetime.fromtimestamp(started, timezone.utc).isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "plait": plait.__version__,
        "code": code_hash(),
        "python": platform.python_version(),
        "torch": _version("torch"),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "gpu": _gpu(),
    }


@cache
def code_hash() -> str:
    """16 hex digits over all of plait's source, so that results of different code are told apart."""
    root = Path(plait.__file__).parent
    total = hashlib.sha256()
    for path in sorted(path for path in root.rglob("*") if path.suffix in (".py", ".txt")):
        content = path.read_bytes()
        # Name and length go in front, or moving a line from one file to the next would go unnoticed.
        total.update(f"{path.relative_to(root).as_posix()} {len(content)}\n".encode())
        total.update(content)
    return total.hexdigest()[:16]


@cache
def cpu_model() -> str:
    """The processor's name as it gives it; an empty string where the system does not tell."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def _version(package: str) -> str | None:
    """From the package's metadata: nothing is imported."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _gpu() -> str | None:
    # A process that has not imported torch has not computed on a GPU either.
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available():
        return None
    name: str = torch.cuda.get_device_name()
    return name
