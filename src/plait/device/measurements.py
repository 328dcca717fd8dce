"""Models measured on this machine, each once: every measurement is a record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.device.profile import Profile
from plait.device.quantities import BOTH, Setting, measurable, meter_of, on_device, quantity
from plait.model.architecture import architecture
from plait.records import Record, Store, provenance_of, record_key

if TYPE_CHECKING:
    from plait.device.quantities import Meter

PROTOCOL = 1  # raised when the measurement changes for the same setting


class Measurements:
    """Measures models under one setting and stores the results; `archai` adds memory as LiteTransformerSearch's code
    counts it. No process is started and torch is not imported until something has to be measured."""

    def __init__(self, store: Store, setting: Setting, *, archai: bool = False) -> None:
        self.store, self.setting, self.archai = store, setting, archai
        self._open = ExitStack()
        self._meters: dict[str, Meter] = {}

    def __enter__(self) -> Measurements:
        return self

    def __exit__(self, *exception: object) -> None:
        self._open.close()
        self._meters = {}

    def config(self, spec: str) -> dict[str, Any]:
        if not self.setting.on_cpu:
            import_module("torch")  # the GPU's name, which is part of the record, comes from torch
        # Unlike a loss or a probe's score, this result depends on the machine.
        machine = Profile.here(self.setting).device
        arch = architecture(spec)
        settings = {**self.setting.as_dict(), "archai": self.archai, "machine": machine}
        return {"protocol": PROTOCOL, **arch.identity(), **settings}

    def find(self, spec: str) -> Record | None:
        return self.store.get(record_key("measure", self.config(spec)))

    def measure(self, spec: str, *, again: bool = False) -> Record:
        """The stored record; a new measurement if there is none, if it lacks a quantity that can be measured now, or
        `again`."""
        stored, names = self.find(spec), measurable(self.setting)
        if stored is not None and not again and all(name in stored.result for name in names):
            return stored
        started = time.time()
        result = self._joined(spec, again) if self.setting.mode == BOTH else self._result(spec, names)
        record = Record.of("measure", self.config(spec), result, provenance_of(started, time.time() - started))
        if stored is not None:
            self.store.delete([stored.key])
        self.store.put(record)
        return record

    def _joined(self, spec: str, again: bool) -> dict[str, Any]:
        """The result for a prompt and its answer, from one measurement of each."""
        from plait.device.answer import joined_result

        if self.archai:
            raise UserError("--archai works only with --mode prefill.")
        with ExitStack() as stack:
            parts = [stack.enter_context(Measurements(self.store, part)) for part in self.setting.parts]
            prompt, token = (part.measure(spec, again=again).result for part in parts)
        return joined_result(prompt, token, self.setting.answer)

    def _result(self, spec: str, names: Sequence[str]) -> dict[str, Any]:
        arch = architecture(spec)
        order = sorted(names, key=lambda name: not quantity(name).first)
        measured = {name: self._meter(name).measure(arch, self.setting).as_dict() for name in order}
        result = {name: measured[name] for name in names}
        if self.archai:
            from plait.device.archai import measure_archai

            result["archai"] = measure_archai(arch, self.setting).as_dict()
        return result

    def _meter(self, name: str) -> Meter:
        if name not in self._meters:
            self._meters[name] = self._open.enter_context(meter_of(name)())
        return self._meters[name]


def values(record: Record) -> dict[str, float]:
    """The measured values by quantity, in base units."""
    measured = ((name, q) for name, q in on_device().items() if name in record.result)
    return {name: record.result[name][q.value] for name, q in measured}


def noisy(record: Record | None) -> bool:
    return record is not None and any(record.result.get(name, {}).get("noisy") for name in on_device())
