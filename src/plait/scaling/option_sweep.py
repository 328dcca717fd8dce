"""Which value of a mixer's option is best, from stored trainings or probes that are equal in everything else (as Poli
et al. 2024, C.4.3, do for the head dimension of multi-head Hyena).

Records that differ only in the option and the seed form one setting. A setting of probes has many tasks, and a value
counts only if all of them were probed with it. A value is tied with the best if the difference is within the noise
between seeds; with one seed per value the noise is unknown, and all values are tied.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from plait.analysis.seed_noise import seed_noise
from plait.core.errors import UserError, did_you_mean
from plait.mixers.options import MixerOptions
from plait.mixers.table import MIXERS
from plait.model.architecture import Architecture
from plait.records import Record
from plait.scaling.run import trained_architecture

#: By kind of record: the name of the quality in its result, and 1 if higher is better.
QUALITY = {"train": ("loss", -1.0), "probe": ("accuracy", 1.0)}

ERRORS = 2.0  # differences of more standard errors than this are significant

ByTask = dict[str, list[float]]


@dataclass(frozen=True)
class OptionValue:
    """The mean quality of one value in one setting, over tasks and seeds. `head_dim` is given if the option counts
    heads. `noise` is the standard deviation between seeds, None if no value has two. `tied`: not distinguishable from
    the best value."""

    setting: str
    value: str
    quality: float
    runs: int
    head_dim: int | None
    best: bool
    noise: float | None
    tied: bool


def option_values(records: Iterable[Record], mixer: str, option: str, kind: str) -> list[OptionValue]:
    """All values, setting by setting, the best first; a `UserError` if no setting has two values."""
    _require(mixer, option)
    quality, sign = QUALITY[kind]
    by_setting: dict[tuple[str, int], dict[str, ByTask]] = {}
    named = re.compile(rf"(?<![\w-]){re.escape(mixer)}(?![\w-])")
    for record in records:
        if not named.search(str(record.config["spec"])):
            continue  # it may have a mixer that is not known here
        arch = trained_architecture(record)
        values = {str(getattr(layer, option)) for layer in arch.layers if layer.name == mixer}
        if len(values) != 1:
            continue
        task = json.dumps(record.config["task"], sort_keys=True) if kind == "probe" else ""
        setting = _setting(record, arch, mixer, option), arch.header.d
        by_task = by_setting.setdefault(setting, {}).setdefault(values.pop(), {})
        by_task.setdefault(task, []).append(float(record.result[quality]))
    rows = [
        row for (setting, width), values in by_setting.items() for row in _rows(setting, values, sign, option, width)
    ]
    if not rows:
        raise UserError(
            f"no two {kind} records differ in {mixer}.{option} alone; {kind} models that differ in nothing else."
        )
    return rows


def _rows(setting: str, values: dict[str, ByTask], sign: float, option: str, width: int) -> Iterator[OptionValue]:
    every = {task for tasks in values.values() for task in tasks}
    whole = {value: tasks for value, tasks in values.items() if set(tasks) == every}
    if len(whole) < 2:
        return
    means = {value: float(np.mean([np.mean(runs) for runs in tasks.values()])) for value, tasks in whole.items()}
    ordered = sorted(means, key=lambda value: -sign * means[value])
    noise = seed_noise(runs for tasks in whole.values() for runs in tasks.values())
    count = {value: sum(map(len, tasks.values())) for value, tasks in whole.items()}
    best = ordered[0]
    for value in ordered:
        head_dim = width // int(value) if option == "heads" else None
        apart = abs(means[value] - means[best])
        error = math.inf if noise is None else noise * math.sqrt(1 / count[value] + 1 / count[best])
        tied = value != best and not (apart > ERRORS * error and apart >= (noise or 0.0))
        yield OptionValue(setting, value, means[value], count[value], head_dim, value == best, noise, tied)


def _setting(record: Record, arch: Architecture, mixer: str, option: str) -> str:
    """Everything that has to be equal: the spec without the option, and a hash of the text, recipe and budget."""
    texts = (_without(layer, option) if layer.name == mixer else layer.to_layer().text for layer in arch.layers)
    kept = {name: value for name, value in record.config.items() if name not in ("spec", "seed", "task")}
    header = f"d={arch.header.d}" + ("" if "task" in record.config else f" vocab={arch.header.vocab}")
    return f"{header} | {' '.join(texts)} #{crc32(json.dumps(kept, sort_keys=True).encode()):08x}"


def _without(layer: MixerOptions, option: str) -> str:
    names = [field.name for field in dataclasses.fields(layer) if field.name != option]
    others = ",".join(f"{name}={getattr(layer, name)}" for name in names)
    return f"{layer.name}[{others}]"


def _require(mixer: str, option: str) -> None:
    if mixer not in MIXERS.names():
        near = did_you_mean(mixer, MIXERS.names()) or " One of your own: --mixers my_mixer.py."
        raise UserError(f"unknown mixer '{mixer}'.{near}")
    options = [field.name for field in dataclasses.fields(MIXERS.load(mixer))]
    if option not in options:
        raise UserError(
            f"{mixer} has no option '{option}'.{did_you_mean(option, options)} It has: {', '.join(options)}."
        )
