"""Measures the components of models: layers, embedding and head, and whole models as a check.

In a model every layer's weights come from memory: by the time a pass returns to a layer, the other layers and the
logits have evicted them from the cache. A layer measured repeatedly by itself would find its weights there and seem up
to a tenth faster. So the cache is flushed before every repeat.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch

from plait.device.archai import LiveTensors
from plait.device.latency import Call, Stopwatch, Timing, keep_freed_memory
from plait.device.memory import MemoryMeter
from plait.device.profile import Point
from plait.device.quantities import OptionalMeter, Setting, measurable, meter_of, quantity
from plait.device.workload import Layers, Workload
from plait.mixers.options import MixerOptions
from plait.mixers.table import load
from plait.model.architecture import Architecture
from plait.spec import Header

EVICTED = 1 << 26  # bytes: twice a large last-level cache
SECONDS, REPEATS, LIMIT = 0.12, 4, 4  # per part
FOR_OTHERS = 0.25  # fraction of the usual time for an optional quantity such as energy
#: Copies of a layer in a row, by its FLOPs: fast layers need more for the clock's resolution, slow ones take time.
COPIES = ((2e7, 8), (2e8, 4), (float("inf"), 2))


class PartMeter:
    """For one device, dtype and number of threads; torch's number of threads must match the setting."""

    def __init__(self, setting: Setting, memory: MemoryMeter) -> None:
        keep_freed_memory()
        self.common = setting
        self._watch = Stopwatch(setting)
        self._memory = memory
        #: Meters of quantities that not every machine can measure.
        self._others: dict[str, OptionalMeter] = {
            name: meter_of(name)() for name in measurable(setting) if quantity(name).optional
        }

    def layer(self, d: int, options: MixerOptions, norm: str, setting: Setting) -> Point:
        flops = setting.batch * float(options.cost(d, setting.new_tokens, setting.held_tokens).generation_flops)
        copies = next(count for limit, count in COPIES if flops <= limit)
        work = Layers(d, options, norm, setting, copies)
        timing = self._watch.time(work.run, before=self._evict, seconds=SECONDS, least=REPEATS, limit=LIMIT)
        others = self._others_of(work.run, setting, copies)
        work.blocks = work.blocks[:1]
        work.states = None if work.states is None else work.states[:1]
        input_bytes = work.x_BTD.nbytes // work.x_BTD.shape[1] * setting.new_tokens
        seconds = replace(timing, seconds=timing.seconds / copies)
        point = _point("layer", str(options.to_layer()), d, norm, setting, seconds, timing, input_bytes + _peak(work))
        return replace(point, source=options.source_hash, others=others)

    def embedding_and_head(self, header: Header, setting: Setting) -> Point:
        identity = load("identity")()
        work = Workload(Architecture(header, (identity,)), setting)
        timing = self._watch.time(work.run, before=self._evict, seconds=SECONDS, least=REPEATS, limit=LIMIT)
        others = self._others_of(work.run, setting)
        point = _point("outside", header.text, header.d, header.norm, setting, timing, timing, _peak(work))
        return replace(point, others=others)

    def model(self, arch: Architecture, setting: Setting) -> Point:
        work = Workload(arch, setting)
        timing = self._watch.time(work.run, seconds=3 * SECONDS, least=2 * REPEATS)
        others = self._others_of(work.run, setting)
        del work
        memory = self._memory.measure(arch, setting)
        point = _point("model", arch.text, arch.header.d, arch.header.norm, setting, timing, timing, memory.activations)
        return replace(point, memory=memory.peak, source=arch.source_hash, others=others)

    def _others_of(self, call: Call, setting: Setting, copies: int = 1) -> dict[str, tuple[float, float]]:
        """Optional quantities of one copy, each with its relative uncertainty. A value of zero is left out."""
        values = {}
        for name, meter in self._others.items():
            entries = meter.measure_call(call, setting, FOR_OTHERS).as_dict()
            if (value := entries[quantity(name).value]) > 0:
                values[name] = value / copies, (entries["high"] - entries["low"]) / 2 / value
        return values

    def _evict(self) -> None:
        self._filler.add_(1)

    @cached_property
    def _filler(self) -> torch.Tensor:
        return torch.zeros(EVICTED // 4, device=self.common.device)


def _peak(work: Layers | Workload) -> int:
    with torch.inference_mode(), LiveTensors() as tensors:
        result = work.run()
    del result
    return int(tensors.peak)


def _point(
    what: str, spec: str, d: int, norm: str, setting: Setting, share: Timing, timing: Timing, activations: int
) -> Point:
    return Point(
        what=what,
        spec=spec,
        d=d,
        norm=norm,
        mode=setting.mode,
        seq=setting.seq,
        batch=setting.batch,
        seconds=share.seconds,
        noise=(timing.high - timing.low) / 2 / timing.seconds,
        noisy=timing.noisy,
        activations=activations,
    )
