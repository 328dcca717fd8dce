"""Models measured on this machine, each once: every measurement is a record.

The latency of a prompt and its answer, as seen by a user, is computed from quantities measured in single calls:

    time to first token  = prefill of the prompt
    time per token       = one decoded token, in the middle of the answer
    latency              = time to first token + answer · time per token

Memory is the higher of the two peaks. The same sums apply to measurements and predictions. Interval bounds add up as
well, because the errors of prompt and token are correlated.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from importlib import import_module
from typing import TYPE_CHECKING, Any

import numpy as np

from plait.core.errors import UserError
from plait.device.predictor import Prediction, Predictor
from plait.device.profile import Profile
from plait.device.quantities import BOTH, Setting, measurable, meter_of, on_device, quantity
from plait.model.architecture import Architecture, architecture
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

    def measure(self, spec: str, again: bool = False) -> Record:
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


TTFT, TOKEN_TIME = "ttft", "token_time"
ADDED = ("latency", "energy")


class AnswerPredictor:
    """A `Predictor` for mode both: one predictor for the prompt and one for a token of the answer."""

    def __init__(self, profile: Profile, setting: Setting) -> None:
        self.profile, self.answer = profile, setting.answer
        self.setting = Setting(BOTH, setting.seq, setting.batch, **profile.common, answer=setting.answer)
        self.parts = [Predictor(profile, part) for part in setting.parts]

    def predict(self, specs: Sequence[Architecture | str]) -> dict[str, Prediction]:
        return self.joined([part.predict(specs) for part in self.parts])

    def joined(self, predictions: Sequence[dict[str, Prediction]]) -> dict[str, Prediction]:
        """Combine the predictions for the prompt and for one token of the answer."""
        prompt, token = predictions
        sums = {
            name: Prediction(*(getattr(prompt[name], e) + self.answer * getattr(token[name], e) for e in ENDS))
            for name in ADDED
            if name in prompt and name in token
        }
        sums |= {TTFT: prompt["latency"], TOKEN_TIME: token["latency"]}
        higher = [np.maximum(getattr(prompt["memory"], e), getattr(token["memory"], e)) for e in ENDS]
        return {**sums, "memory": Prediction(*higher)}


ENDS = ("mean", "low", "high")


def joined_result(prompt: Mapping[str, Any], token: Mapping[str, Any], answer: int) -> dict[str, Any]:
    """The result of mode both, computed from the results for prompt and token; one entry per quantity."""
    result: dict[str, Any] = {}
    for name in ADDED:
        if name in prompt and name in token:
            value = "seconds" if name == "latency" else "joules"
            result[name] = {
                **{end: prompt[name][end] + answer * token[name][end] for end in (value, "low", "high")},
                "noisy": prompt[name]["noisy"] or token[name]["noisy"],
            }
    both = prompt["latency"], token["latency"]
    # It is only as reliable as the worse of the two.
    result["latency"] |= {name: min(latency[name] for latency in both) for name in ("calm", "repeats")}
    result["latency"] |= {name: max(latency[name] for latency in both) for name in ("spread", "drift", "load")}
    kept = ("seconds", "low", "high", "noisy")
    for name, latency in zip((TTFT, TOKEN_TIME), both, strict=True):
        result[name] = {entry: latency[entry] for entry in kept}
    result["memory"] = max(prompt["memory"], token["memory"], key=lambda memory: float(memory["peak"]))
    return result
