"""Joules per call on machines with energy counters: RAPL for a processor's packages, NVML for a GPU.

A counter measures the whole package or board, including idle power and other programs, so the machine should be idle. A
call is repeated for several windows of time, each long compared with the counter's update interval (about 1 ms for
RAPL, up to 100 ms for NVML); the result is the median window.

On an NVIDIA GPU this needs Volta or later and the package nvidia-ml-py; on a CPU Linux with readable files
/sys/class/powercap/intel-rapl:*/energy_uj (AMD's processors have them under the same name).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from plait.analysis.intervals import median_interval
from plait.core.errors import UserError
from plait.core.registry import names
from plait.core.result import Result
from plait.device.quantities import Setting
from plait.model.architecture import Architecture

POWERCAP = Path("/sys/class/powercap")
WINDOWS = 6  # the smallest number of windows whose extremes contain the median with probability 95 %
SECONDS = {"cpu": 0.2, "cuda": 1.0}  # of one window
SPREAD = 0.10  # interquartile range over median, beyond which a result is called noisy


@dataclass(frozen=True)
class Energy(Result):
    """`joules` of one call, with the 95 % interval of the median; mean `watts`; number of `calls` in all windows."""

    joules: float
    low: float
    high: float
    watts: float
    calls: int
    counter: str
    noisy: bool


class Counter(Protocol):
    name: str

    def joules(self) -> float:
        """Energy used since a fixed moment; it never decreases."""
        ...


class Unreadable(Exception):
    """Energy cannot be read here; the message says why, and what to do."""


class Rapl:
    """Counters of all processor packages. They wrap around to 0 after `max_energy_range_uj`."""

    name = "rapl"

    def __init__(self, root: Path) -> None:
        # Zones inside a package (intel-rapl:0:0) are part of it, and `psys` counts the packages a second time.
        self._zones = [zone for zone in sorted(root.glob("intel-rapl:*")) if _is_package(zone)]
        if not self._zones:
            raise Unreadable(
                f"there is no counter {root}/intel-rapl:*/energy_uj, as in most virtual machines and containers. Run "
                "on the machine itself, under Linux with the module intel_rapl_common loaded"
            )
        try:
            self._ranges = [int((zone / "max_energy_range_uj").read_text()) for zone in self._zones]
            self._last = self._read()
        except PermissionError as wrong:
            raise Unreadable(
                f"{wrong.filename} can be read only by root. Allow it until the next reboot with "
                f"`sudo chmod a+r {root}/intel-rapl:*/energy_uj`"
            ) from None
        except (OSError, ValueError) as wrong:
            raise Unreadable(f"the counter of {self._zones[0]} cannot be read ({wrong})") from None
        self._total = 0.0

    def joules(self) -> float:
        now = self._read()
        for before, after, most in zip(self._last, now, self._ranges, strict=True):
            self._total += 1e-6 * (after - before + (most if after < before else 0))
        self._last = now
        return self._total

    def _read(self) -> list[int]:
        return [int((zone / "energy_uj").read_text()) for zone in self._zones]


class Nvml:
    """One GPU, as CUDA numbers them."""

    name = "nvml"

    def __init__(self, device: str) -> None:
        try:
            self._nvml = import_module("pynvml")
        except ImportError:
            raise Unreadable("a GPU's counter is read through NVML: `pip install nvidia-ml-py`") from None
        try:
            self._nvml.nvmlInit()
            self._handle = self._find(int(device.partition(":")[2] or 0))
            self.joules()
        except (self._nvml.NVMLError, ValueError, IndexError) as wrong:
            raise Unreadable(
                f"NVML has no energy counter for {device} ({wrong}): that takes an NVIDIA GPU, Volta or later, and its "
                "driver"
            ) from None

    def joules(self) -> float:
        return 1e-3 * float(self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))

    def _find(self, number: int) -> Any:
        """CUDA counts the visible GPUs only; NVML counts all."""
        visible = names(os.environ.get("CUDA_VISIBLE_DEVICES", ""))
        name = visible[number] if visible else str(number)
        if name.isdigit():
            return self._nvml.nvmlDeviceGetHandleByIndex(int(name))
        return self._nvml.nvmlDeviceGetHandleByUUID(name)


class EnergyMeter:
    """A `plait.device.quantities.Meter`."""

    def __enter__(self) -> EnergyMeter:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    @staticmethod
    def unavailable(setting: Setting) -> str:
        try:
            counter(setting)
        except Unreadable as why:
            return str(why)
        return ""

    def measure(self, arch: Architecture, setting: Setting) -> Energy:
        from plait.device.workload import Workload, threads

        with threads(setting):
            return self.measure_call(Workload(arch, setting).run, setting)

    def measure_call(self, call: Callable[[], object], setting: Setting, share: float = 1.0) -> Energy:
        """Energy of one call. `share` shortens the windows, for callers that measure many calls."""
        import torch

        try:
            meter = counter(setting)
        except Unreadable as why:
            raise UserError(f"energy cannot be measured here: {why}.") from None
        wait = torch.cuda.synchronize if setting.device.startswith("cuda") else lambda: None
        with torch.inference_mode():
            call()  # warm-up
            return joules_of(call, meter, wait, share * SECONDS[setting.device.partition(":")[0]])


def counter(setting: Setting) -> Counter:
    kind = setting.device.partition(":")[0]
    if kind not in SECONDS:
        raise Unreadable(f"energy is counted on CPUs (RAPL) and NVIDIA GPUs (NVML), not on {kind}")
    return Rapl(POWERCAP) if kind == "cpu" else Nvml(setting.device)


def joules_of(call: Callable[[], object], meter: Counter, wait: Callable[[], object], seconds: float) -> Energy:
    """Windows of at least so many seconds each, with whole calls; `wait` synchronises with the device."""
    joules, watts, calls = [], [], 0
    for _ in range(WINDOWS):
        wait()
        begun, before, count = time.perf_counter(), meter.joules(), 0
        while not count or time.perf_counter() - begun < seconds:
            call()
            wait()
            count += 1
        drawn, took = meter.joules() - before, time.perf_counter() - begun
        joules.append(drawn / count)
        watts.append(drawn / took)
        calls += count
    values = np.array(joules)
    middle = float(np.median(values))
    low, high = median_interval(values) or (float(values.min()), float(values.max()))
    upper, lower = np.quantile(values, (0.75, 0.25))
    # A counter that did not change gives no information.
    noisy = middle <= 0 or float(upper - lower) > SPREAD * middle
    return Energy(middle, low, high, float(np.median(watts)), calls, meter.name, noisy)


def _is_package(zone: Path) -> bool:
    try:
        return zone.name.count(":") == 1 and (zone / "name").read_text().startswith("package")
    except OSError:
        return False
