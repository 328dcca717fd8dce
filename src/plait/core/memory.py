"""How much memory is available, and a refusal in advance of what is known to need more."""

from __future__ import annotations

import os
from pathlib import Path

from plait.core.errors import UserError

_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def available_memory() -> int:
    """Bytes that can be allocated now without swapping: the operating system's estimate, or the container's limit where
    that is smaller."""
    found = _meminfo() or _all_memory()
    limits = [int(text) for path in _LIMITS if (text := _text(path).strip()).isdecimal()]
    return min([found, *limits])


def require_memory(needed: float, what: str, then: str = "") -> None:
    """Raise a `UserError` if `needed` bytes are not available. `what` needs them; `then` says what to change."""
    there = available_memory()
    if needed > there:
        raise UserError(f"{what} needs {_size(needed)} of memory; there are {_size(there)}. {then}".rstrip())


def _size(count: float) -> str:
    return f"{count / 1e9:,.1f} GB" if count < 1e18 else f"{count:.1e} bytes"


def _meminfo() -> int:
    for line in _text(Path("/proc/meminfo")).splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def _all_memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):  # unknown here: refuse nothing
        return 1 << 62


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii")
    except OSError:
        return ""
