"""What stored records tell: which value of a mixer's option is best, and the scores of probes by architecture.

Values of an option are compared by trainings or probes that are equal in everything else (as Poli et al. 2024, C.4.3,
do for the head dimension of multi-head Hyena). Records that differ only in the option and the seed form one setting. A
setting of probes has many tasks, and a value counts only if all of them were probed with it. A value is tied with the
best if the difference is within the noise between seeds; with one seed per value the noise is unknown, and all values
are tied.

Scores of probes are compared with scaling runs of the same architectures. Two models are of the same architecture if
their mixers follow the same pattern, whatever their sizes: two blocks of width 128 may be the small version of
twenty-four blocks of width 1024.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from zlib import crc32

import numpy as np

from plait.analysis.seed_noise import seed_noise
from plait.core.errors import UserError, did_you_mean
from plait.mixers.options import MixerOptions
from plait.mixers.table import MIXERS
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.records import Record, Store
from plait.scaling.run import trained_architecture
from plait.scaling.sizes import attention_share, pattern_of

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


KIND = "probe"


@dataclass(frozen=True)
class Probed:
    """One probed architecture, with its accuracy on each task: the mean over the task's settings and over seeds."""

    pattern: str
    spec: str
    state: int
    attention: float
    order: tuple[str, ...]  # names of its sequence mixers, first layer first
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def mean(self) -> float:
        return float(np.mean(list(self.scores.values())))


def probed(store: Store) -> list[Probed]:
    """All probed architectures of a store; a `UserError` if there are none."""
    by_spec: dict[str, dict[str, list[float]]] = {}
    for record in store.find(KIND):
        spec, task = str(record.config["spec"]), str(record.config["task"]["task"])
        key = _core(spec)
        by_spec.setdefault(key, {}).setdefault(task, []).append(float(record.result["accuracy"]))
    if not by_spec:
        raise UserError(f"{store.name} has no probes: `plait probe --suite mad21` makes them.")
    return [_probed(spec, scores) for spec, scores in by_spec.items()]


def _core(spec: str) -> str:
    """The layers and the width of a probe's spec, without the vocabulary and the kind, which depend on the task."""
    arch = architecture(spec)
    return " ".join(layer.to_layer().text for layer in arch.layers) + f" @{arch.header.d}"


def _probed(core: str, scores: Mapping[str, list[float]]) -> Probed:
    layers, _, width = core.rpartition(" @")
    arch = architecture(f"d={width} vocab=16 | {layers}")
    order = tuple(options.name for options in arch.layers if options.kind == "sequence")
    means = {task: float(np.mean(values)) for task, values in scores.items()}
    state = model_cost(arch, seq=1).fixed_state
    return Probed(pattern_of(arch), arch.text, state, attention_share(arch), order, means)


def scores_by_pattern(models: list[Probed]) -> dict[str, dict[str, float]]:
    """Scores of each pattern; of patterns that were probed with several settings, those of the best one."""
    best: dict[str, Probed] = {}
    for model in sorted(models, key=lambda model: model.mean):
        best[model.pattern] = model
    return {pattern: model.scores for pattern, model in best.items()}


def order_pairs(models: list[Probed]) -> list[tuple[Probed, Probed]]:
    """Pairs of hybrids with the same mixers in opposite orders: attention last, then attention first."""
    by_order = {model.order: model for model in models}
    pairs = []
    for order, model in by_order.items():
        turned = tuple(reversed(order))
        if turned != order and turned in by_order and "attn" in order[-1] and "attn" not in order[0]:
            pairs.append((model, by_order[turned]))
    return pairs
