"""Joules from a made-up sysfs tree and a made-up NVML: what a call draws is known, so are wrap-around and refusals."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from plait.cli import measure as measure_command
from plait.core.errors import UserError
from plait.device import energy, latency, memory
from plait.device.energy import EnergyMeter, Rapl, joules_of
from plait.device.measurements import Measurements, values
from plait.device.quantities import Setting, measurable
from plait.records import open_store

SPEC = "d=32 vocab=50 | attn[heads=2] mlp[inner=64]"
RANGE = 1_000_000


def zone(root: Path, number: str, name: str, microjoules: int) -> Path:
    made = root / f"intel-rapl:{number}"
    made.mkdir(parents=True)
    (made / "name").write_text(f"{name}\n")
    (made / "max_energy_range_uj").write_text(f"{RANGE}\n")
    (made / "energy_uj").write_text(f"{microjoules}\n")
    return made


def draw(zone: Path, microjoules: int) -> None:
    file = zone / "energy_uj"
    file.write_text(str((int(file.read_text()) + microjoules) % RANGE))


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "powercap"
    made = zone(root, "0", "package-0", RANGE - 2500)
    zone(root, "0:0", "core", 0)  # a part of the package
    zone(root, "1", "psys", 0)  # the package once more
    monkeypatch.setattr(energy, "POWERCAP", root)
    return made


def per_call(package: Path, microjoules: int) -> Callable[[], None]:
    def call() -> None:
        for other in package.parent.iterdir():
            draw(other, microjoules)

    return call


def test_joules_of_a_call_across_the_end_of_the_range(package: Path) -> None:
    found = joules_of(per_call(package, 1000), Rapl(package.parent), lambda: None, 1e-4)
    assert found.joules == pytest.approx(1e-3)  # neither the core's nor psys' counter is added, nor is the range lost
    assert (found.low, found.high) == pytest.approx((1e-3, 1e-3))
    assert found.calls >= energy.WINDOWS
    assert not found.noisy


def test_two_packages_add_up(package: Path) -> None:
    other = zone(package.parent, "2", "package-1", 5)
    counter = Rapl(package.parent)
    draw(package, 3000)
    draw(other, 400)
    assert counter.joules() == pytest.approx(3.4e-3)
    assert counter.joules() == pytest.approx(3.4e-3)


def test_a_counter_that_stands_still_is_noise(package: Path) -> None:
    assert joules_of(lambda: None, Rapl(package.parent), lambda: None, 1e-4).noisy


def test_why_a_processor_cannot_tell(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert EnergyMeter.unavailable(Setting()) == ""
    assert measurable(Setting()) == ["latency", "memory", "energy"]
    read = Path.read_text

    def forbidden(path: Path, *arguments: Any, **named: Any) -> str:
        if path.name == "energy_uj":
            raise PermissionError(13, "Permission denied", str(path))
        return read(path, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "read_text", forbidden)
        assert "by root. Allow it" in EnergyMeter.unavailable(Setting())
        assert "sudo chmod a+r" in EnergyMeter.unavailable(Setting())
    monkeypatch.setattr(energy, "POWERCAP", package / "nothing here")
    assert "there is no counter" in EnergyMeter.unavailable(Setting())
    assert measurable(Setting()) == ["latency", "memory"]
    assert "not on mps" in EnergyMeter.unavailable(Setting(device="mps"))
    with pytest.raises(UserError, match="energy cannot be measured here: there is no counter"):
        EnergyMeter().measure_call(lambda: None, Setting())


class FakeNvml(ModuleType):
    """Four GPUs, whose counters are in millijoules."""

    class NVMLError(Exception): ...

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.drawn = {"0": 10, "1": 20, "2": 30, "GPU-abc": 40}

    def nvmlInit(self) -> None: ...

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        if str(index) not in self.drawn:
            raise self.NVMLError("Invalid Argument")
        return str(index)

    def nvmlDeviceGetHandleByUUID(self, name: str) -> str:
        return name

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self.drawn[handle]


def test_a_gpu_by_cudas_number(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert energy.counter(Setting(device="cuda:1")).joules() == pytest.approx(0.020)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,GPU-abc")
    found = energy.counter(Setting(device="cuda"))
    fake.drawn["2"] += 5
    assert found.joules() == pytest.approx(0.035)
    assert energy.counter(Setting(device="cuda:1")).joules() == pytest.approx(0.040)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert "no energy counter for cuda:7 (Invalid Argument)" in EnergyMeter.unavailable(Setting(device="cuda:7"))
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "pip install nvidia-ml-py" in EnergyMeter.unavailable(Setting(device="cuda"))


# ---- through measurements and the command


class Meter:
    def __enter__(self) -> Meter:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def measure(self, arch: object, setting: object) -> memory.Memory:
        return memory.Memory(4_000_000, 1, 1, 1)


@pytest.fixture
def measured(package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    timing = latency.Timing(0.002, 0.0019, 0.0021, 0.01, 9, 1.0, 0.0, 0.5, False)
    monkeypatch.setattr(memory, "MemoryMeter", Meter)
    monkeypatch.setattr(latency, "measure_latency", lambda arch, setting: timing)
    # The model runs for real; the counter moves by 2 mJ each time.
    from plait.device.workload import Workload

    run = Workload.run

    def drawing(self: Workload) -> Any:
        draw(package, 2000)
        return run(self)

    monkeypatch.setattr(Workload, "run", drawing)
    monkeypatch.setitem(energy.SECONDS, "cpu", 1e-4)
    monkeypatch.chdir(tmp_path)
    return package


def test_a_measurement_has_energy_once_it_can_be_read(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = energy.POWERCAP
    with open_store("sqlite:///runs.db") as store, Measurements(store, Setting(seq=8)) as known:
        monkeypatch.setattr(energy, "POWERCAP", root / "nothing here")
        assert values(known.measure(SPEC)) == {"latency": 0.002, "memory": 4_000_000}
        monkeypatch.setattr(energy, "POWERCAP", root)
        record = known.measure(SPEC)
        assert values(record)["energy"] == pytest.approx(0.002)
        monkeypatch.setattr(energy, "POWERCAP", root / "nothing here")
        assert known.measure(SPEC).key == record.key
        assert values(known.measure(SPEC))["energy"] == pytest.approx(0.002)  # what is known stays


def run_command(*arguments: str) -> Any:
    app = typer.Typer()
    app.command()(measure_command.command)
    return CliRunner().invoke(app, [SPEC, "--seq", "8", "--store", "sqlite:///runs.db", *arguments])


def test_the_command_shows_energy_where_it_can_be_read(measured: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run_command("--energy").stdout
    assert "mJ" in shown
    assert "2.00 to 2.00" in shown
    monkeypatch.setattr(energy, "POWERCAP", measured / "nothing here")
    refused = run_command("--energy")
    assert isinstance(refused.exception, UserError)
    assert str(refused.exception).startswith("energy cannot be measured here: there is no counter")
    assert run_command("--again").exit_code == 0


def test_energy_is_that_of_one_call() -> None:
    """However many calls a window has."""

    class ThreeJoules:
        name, total = "made-up", 0.0

        def joules(self) -> float:
            return self.total

        def call(self) -> None:
            self.total += 3.0

    counter = ThreeJoules()
    found = joules_of(counter.call, counter, lambda: None, 0.01)
    assert (found.joules, found.low, found.high) == pytest.approx((3.0, 3.0, 3.0))
    assert counter.total == pytest.approx(3.0 * found.calls)
