"""Installed packages, hardware and speed of this machine, as far as plait uses them: `plait.doctor`.

Checks that may crash (a CPU that claims bf16 support it does not have) run in a separate process.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import requires
from pathlib import Path
from typing import Literal

from plait import __version__
from plait.core.errors import UserError
from plait.core.progress import OnProgress, available_memory, ignore, python_command
from plait.core.result import Result
from plait.records.record import cores, cpu_model, installed_version
from plait.records.store import Store, open_store

Status = Literal["good", "missing", "bad"]
CORE_EXTRA = "core"
NOT_FOR_USERS = ("dev",)
TRIED_SECONDS = 120  # timeout of a check in a child process
KERNEL_ERROR = 2e-2  # largest relative error of bf16 kernels against their reference


@dataclass(frozen=True)
class Finding:
    what: str
    status: Status
    found: str
    fix: str = ""  # what to do about a problem


@dataclass(frozen=True)
class DoctorResult(Result):
    ROWS = "findings"
    plait: str  # version
    healthy: bool  # nothing is bad; missing items are optional
    findings: tuple[Finding, ...]
    speed: dict[str, float]  # GFLOP/s of matrix products, GB/s of copies


def doctor(*, store: str | Store | None = None, on_progress: OnProgress = ignore) -> DoctorResult:
    """Check versions, extras, the processor, memory, the compiler, GPUs and their kernels and the store, and time
    matrix products and copies. Optional items are `missing` if absent; only what plait needs can be `bad`."""
    examinations: list[Callable[[], Iterator[Finding]]] = [
        _packages,
        _processor,
        _compiler,
        _gpu,
        lambda: _store(store),
    ]
    findings: list[Finding] = []
    for place, examine in enumerate(examinations):
        on_progress("examining this machine", place, len(examinations) + 1)
        findings += examine()
    speed = _speed()
    on_progress("examining this machine", len(examinations) + 1, len(examinations) + 1)
    return DoctorResult(__version__, all(finding.status != "bad" for finding in findings), tuple(findings), speed)


def _packages() -> Iterator[Finding]:
    yield Finding("python", "good", f"{platform.python_version()} at {sys.executable}")
    extras: dict[str, list[str]] = {}
    for line in requires("plait") or []:
        requirement, _, marker = line.partition(";")
        extra = marker.partition("extra ==")[2].strip(" \"'") or CORE_EXTRA
        name = _name_of(requirement)
        if extra not in NOT_FOR_USERS and name != "plait":  # an extra may include other extras of plait
            extras.setdefault(extra, []).append(name)
    for extra, names in extras.items():
        versions = {name: installed_version(name) for name in names}
        absent = [name for name, there in versions.items() if there is None]
        detail = ", ".join(f"{name} {there}" for name, there in versions.items() if there)
        target = "plait" if extra == CORE_EXTRA else f"'plait[{extra}]'"
        status: Status = "good" if not absent else "bad" if extra == CORE_EXTRA else "missing"
        lacks = f"without {', '.join(absent)}" if absent else ""
        yield Finding(
            f"packages: {extra}",
            status,
            "; ".join(filter(None, (detail, lacks))),
            f"pip install {target}" if absent else "",
        )


def _name_of(requirement: str) -> str:
    name = requirement.strip()
    for end in "[<>=!~ (":
        name = name.partition(end)[0]
    return name


def _processor() -> Iterator[Finding]:
    import torch

    yield Finding("processor", "good", f"{cpu_model()}, {cores()} cores; threads of torch: {torch.get_num_threads()}")
    works = _tried("try_bf16")
    detail = "products run" if works else "bf16 products crash the process: train in fp32, the default on a CPU"
    yield Finding("bf16 on the processor", "good" if works else "missing", detail)
    yield Finding("memory", "good", f"{available_memory() / 1e9:.1f} GB free")


def _tried(function: str) -> bool:
    """Whether a function of this module runs to its end in a separate process."""
    command = python_command(__name__, function)
    try:
        return subprocess.run(command, capture_output=True, timeout=TRIED_SECONDS, check=False).returncode == 0
    except subprocess.TimeoutExpired:
        return False


def try_bf16() -> None:
    import torch

    x = torch.randn(128, 128, dtype=torch.bfloat16)
    assert torch.isfinite(x @ x).all()


def _compiler() -> Iterator[Finding]:
    name = next((name for name in (os.environ.get("CXX", ""), "g++", "clang++") if name and shutil.which(name)), None)
    if name:
        yield Finding("C++ compiler", "good", f"{shutil.which(name)}")
    else:
        yield Finding("C++ compiler", "missing", "none: --compile does not work on the CPU", "install g++ or clang")


def _gpu() -> Iterator[Finding]:
    import torch

    from plait.ops.gpu import why_no_kernels
    from plait.ops.paths import precision_on

    if not torch.cuda.is_available():
        mps = torch.backends.mps.is_available()
        detail = "Apple's, by --device mps" if mps else "none that torch can use: everything runs on the CPU"
        yield Finding("GPU", "good" if mps else "missing", detail)
        return
    for place in range(torch.cuda.device_count()):
        about = torch.cuda.get_device_properties(place)
        capability = f"{about.major}.{about.minor}"
        yield Finding(
            f"GPU {place}", "good", f"{about.name}, {about.total_memory / 1e9:.0f} GB, capability {capability}"
        )
    triton = installed_version("triton")
    yield Finding("triton", "good" if triton else "missing", triton or "nothing is compiled")
    if reason := why_no_kernels(0):
        slower = f"ops run in torch's own operations and trainings in {precision_on('cuda')}, which is slower"
        yield Finding("kernels", "missing", f"{reason}: {slower}")
        return
    wrong = _wrong_kernels()
    detail = (
        f"differ from their references: {', '.join(wrong)}"
        if wrong
        else "every mixer agrees with its reference in bf16"
    )
    yield Finding(
        "kernels",
        "bad" if wrong else "good",
        detail,
        "use --precision fp32, or another version of triton" if wrong else "",
    )


def _wrong_kernels() -> list[str]:
    """Mixers whose kernels on this GPU disagree with their reference implementation."""
    import torch

    from plait.mixers.table import MIXERS
    from plait.model.architecture import architecture
    from plait.model.language_model import build
    from plait.ops.paths import plain_ops

    wrong = []
    for name in MIXERS:
        torch.manual_seed(0)
        model = build(architecture(f"d=256 vocab=64 | {name} mlp")).cuda()
        tokens = torch.randint(64, (2, 96), device="cuda")
        try:
            with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
                ours = model(tokens).float()
                with plain_ops():
                    plain = model(tokens).float()
            agrees = bool((ours - plain).norm() <= KERNEL_ERROR * plain.norm())
        except Exception:  # any: a compiler's, a launch's
            agrees = False
        if not agrees:
            wrong.append(name)
    return wrong


def _store(store: str | Store | None) -> Iterator[Finding]:
    try:
        opened = open_store(store)
        count = opened.count()
        opened.require_writable()
    except UserError as unreachable:
        yield Finding("store", "bad", str(unreachable))
        return
    yield Finding("store", "good", f"{opened.name}, {count:,} records")
    folder = Path(opened.file).parent if opened.file else Path()
    free = shutil.disk_usage(folder if folder.exists() else Path()).free
    yield Finding("disk", "good", f"{free / 1e9:.1f} GB free")


def _speed() -> dict[str, float]:
    """Speed of the default device: matrix products in fp32 (bf16 on a GPU) and copies."""
    import torch

    gpu = torch.cuda.is_available()
    width = 8192 if gpu else 1024
    x = torch.randn(width, width, device="cuda" if gpu else "cpu", dtype=torch.bfloat16 if gpu else torch.float32)
    large = torch.randn(2**27 if gpu else 2**24, device=x.device)
    target = torch.empty_like(large)
    return {
        "GFLOP/s": 2 * width**3 / _seconds(lambda: x @ x) / 1e9,
        "GB/s": 2 * large.nbytes / _seconds(lambda: target.copy_(large)) / 1e9,
    }


def _seconds(work: Callable[[], object], repeats: int = 7) -> float:
    """Median seconds of a few calls."""
    import torch

    taken = []
    for _ in range(1 + repeats):
        began = time.perf_counter()
        work()
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        taken.append(time.perf_counter() - began)
    return sorted(taken[1:])[repeats // 2]
