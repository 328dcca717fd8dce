"""Models measured on this machine, each once: every measurement is a record."""

from __future__ import annotations

import time
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from plait.device.profile import Profile
from plait.device.setting import Setting
from plait.model.architecture import architecture
from plait.records import Record, Store, about, record_key

if TYPE_CHECKING:
    from plait.device.memory import MemoryMeter

PROTOCOL = 1  # raised when the same setting comes to mean another measurement


class Measurements:
    """Of one setting; with `archai` also as LiteTransformerSearch's code counts. Nothing is started, and torch not
    imported, before something must be measured."""

    def __init__(self, store: Store, setting: Setting, *, archai: bool = False) -> None:
        self.store, self.setting, self.archai = store, setting, archai
        self._open = ExitStack()
        self._meter: MemoryMeter | None = None

    def __enter__(self) -> Measurements:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()
        self._meter = None

    def config(self, spec: str) -> dict[str, Any]:
        if not self.setting.on_cpu:
            import_module("torch")  # a GPU is known, and written down, only once torch is there
        # Unlike a loss or a probe's score, this result belongs to the machine.
        machine = Profile.here(self.setting).device
        arch = architecture(spec)
        found = {"protocol": PROTOCOL, **arch.identity(), **self.setting.as_dict(), "archai": self.archai}
        return {**found, "machine": machine}

    def find(self, spec: str) -> Record | None:
        return self.store.get(record_key("measure", self.config(spec)))

    def measure(self, spec: str, *, again: bool = False) -> Record:
        """From the store, unless it is not there or is to be measured `again`."""
        stored = self.find(spec)
        if stored is not None and not again:
            return stored
        from plait.device.latency import measure_latency
        from plait.device.memory import MemoryMeter

        self._meter = self._meter or self._open.enter_context(MemoryMeter())
        started, arch = time.time(), architecture(spec)
        # In a process of its own first: what is too large for this machine ends that one, not us.
        memory = self._meter.measure(arch, self.setting).as_dict()
        result = {"latency": measure_latency(arch, self.setting).as_dict(), "memory": memory}
        if self.archai:
            from plait.device.archai import measure_archai

            result["archai"] = measure_archai(arch, self.setting).as_dict()
        record = Record.of("measure", self.config(spec), result, about(started, time.time() - started))
        if stored is not None:
            self.store.delete([stored.key])
        self.store.put(record)
        return record
