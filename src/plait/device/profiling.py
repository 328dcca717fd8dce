"""Profiles a device in a few minutes, choosing the layers to measure by active learning.

Every kind of layer starts with a few layers that are far apart. After that, the next layer is always the one with the
most uncertain prediction over all kinds, weighted by the kind's share of a model's time. The last part of the time is
spent on whole models, which show how well the sum of the parts holds.

What is measured are the components of models (`PartMeter`): layers, embedding and head, and whole models as a check. In
a model every layer's weights come from memory: by the time a pass returns to a layer, the other layers and the
logits have evicted them from the cache. A layer measured repeatedly by itself would find its weights there and seem up
to a tenth faster. So the cache is flushed before every repeat.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from functools import cached_property

import numpy as np
import torch

from plait.core.errors import UserError
from plait.core.units import duration
from plait.device.archai import LiveTensors
from plait.device.features import EMBEDDING_AND_HEAD, Components, Features, of_embedding_and_head, of_layer
from plait.device.latency import Call, Stopwatch, Timing, keep_freed_memory
from plait.device.memory import MemoryMeter
from plait.device.predictor import Predictor
from plait.device.profile import OnPoint, Point, Profile
from plait.device.quantities import OptionalMeter, Setting, measurable, meter_of, quantity
from plait.device.regression import Floats, Surface
from plait.device.workload import Layers, Workload, threads
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


FIRST = 6  # layers of a kind before its surface is fitted
TUNE_AGAIN = 1.25  # factor in the number of points
LEAST = 3  # … and fewest
FOR_PARTS = 0.75  # fraction of the time
LEAST_CHECKS = 4
FORGET = 0.8  # decay of the expected duration after a slow measurement
SAMPLED_MODELS = 100
POOL = 400  # candidates of a kind that are considered

Key = tuple[str | int, ...]


@dataclass(frozen=True)
class Candidate:
    """A part that could be measured: a layer, or embedding and head if `options` is None."""

    header: Header
    options: MixerOptions | None
    setting: Setting
    features: Features

    @property
    def key(self) -> Key:
        d, norm = self.header.d, self.header.norm
        if self.options is None:
            return _key("outside", self.header.text, d, norm, "", self.setting)
        return _key("layer", str(self.options.to_layer()), d, norm, self.options.source_hash, self.setting)

    def measure(self, meter: PartMeter) -> Point:
        if self.options is None:
            return meter.embedding_and_head(self.header, self.setting)
        return meter.layer(self.header.d, self.options, self.header.norm, self.setting)


class Group:
    """All candidates of one kind, the points measured so far, and the remaining uncertainty."""

    def __init__(
        self, candidates: Sequence[Candidate], points: Sequence[tuple[Point, Features]], rng: np.random.Generator
    ) -> None:
        chosen = rng.choice(len(candidates), min(POOL, len(candidates)), replace=False)
        self.left = [candidates[at] for at in np.sort(chosen)]
        self.points = [(features, point) for point, features in points]
        missing = max(0, min(FIRST - len(points), len(self.left)))
        self._order = _far_apart([candidate.features for candidate in self.left], missing)
        self.kind = candidates[0].features.kind
        self.share = 1.0  # of a model's time
        self._doubt_N: Floats | None = None
        self._surface: Surface | None = None
        self._tuned_at = 0  # points

    @property
    def barely_begun(self) -> bool:
        """Whether there are too few points to predict from; more are measured even if the time is up."""
        return bool(self.left) and len(self.points) < LEAST

    def doubt(self) -> float:
        """The largest predicted relative error among unmeasured candidates; infinite before the first fit, 0 if none
        is left."""
        if not self.left:
            return 0.0
        if self._order:
            return float("inf")
        if self._doubt_N is None:
            values = np.array([point.seconds for _, point in self.points])
            noise = np.array([point.noise / 2 for _, point in self.points])
            # Choosing hyperparameters is most of the work, and a few more points hardly change them.
            like = self._surface if len(self.points) < TUNE_AGAIN * self._tuned_at else None
            self._tuned_at = self._tuned_at if like else len(self.points)
            surface = self._surface = Surface([features for features, _ in self.points], values, noise, like=like)
            self._doubt_N = surface.predict(surface.inputs([candidate.features for candidate in self.left]))[1]
        return float(self._doubt_N.max())

    def take(self) -> Candidate:
        """Remove and return the candidate to measure next."""
        if self._order:
            at = self._order.pop(0)
            self._order = [other - (other > at) for other in self._order]
        else:
            assert self._doubt_N is not None
            at = int(self._doubt_N.argmax())
        self._doubt_N = None
        taken: Candidate = self.left.pop(at)
        return taken


def extend_profile(
    profile: Profile,
    component_sets: Sequence[Components],
    settings: Sequence[Setting],
    *,
    seconds: float,
    most: float = math.inf,
    on_start: Callable[[int], object] | None = None,
    on_progress: OnPoint | None = None,
) -> None:
    """Add points to a profile within so many seconds: no measurement is started that would not end in time, judged by
    the duration of recent ones. Only the minimum that a prediction needs is always measured; a machine on which that
    takes longer than `most` is refused. `on_start` is called with the number of measurements of the minimum."""
    if not component_sets or not settings:
        raise UserError("a profile needs at least one space and one setting.")
    rng = np.random.default_rng([0, len(profile.points)])
    begun = time.monotonic()
    took = {"part": 0.0, "check": 0.0}  # seconds of the slowest recent ones
    checks = added = needed = 0  # whole models, points, and the minimum that a prediction needs

    def add(sort: str, start: float, point: Point) -> None:
        nonlocal added
        now, added = time.monotonic(), added + 1
        took[sort] = max(now - start, FORGET * took[sort])
        profile.points.append(point)
        profile.made = datetime.now(timezone.utc).isoformat(timespec="seconds")
        if on_progress is not None:
            on_progress(point, min(1.0, (now - begun) / seconds, added / needed))

    def fits(sort: str, until: float) -> bool:
        return time.monotonic() - begun + took[sort] <= until

    def too_late() -> bool:
        return most < math.inf and time.monotonic() - begun > most

    def require_time() -> None:
        if too_late():
            passed, missing = time.monotonic() - begun, max(1, needed - added)
            raise UserError(
                f"this machine is too slow or too busy for that time: {added} measurements for its "
                f"profile took {duration(passed)}, and predictions need at least {missing} more, about "
                f"{duration(missing * passed / max(1, added))}. They are kept: run the same command again, with a "
                "longer --time, or when the machine is quiet."
            )

    def check(meter: PartMeter) -> None:
        components, setting = (
            component_sets[checks % len(component_sets)],
            settings[checks // len(component_sets) % len(settings)],
        )
        add("check", time.monotonic(), meter.model(components.model(rng), setting))

    with threads(settings[0]), MemoryMeter() as memory:
        meter = PartMeter(settings[0], memory)
        groups = _groups(component_sets, settings, profile, rng)
        needed = LEAST_CHECKS + sum(max(0, min(LEAST, len(group.left)) - len(group.points)) for group in groups)
        if on_start is not None:
            on_start(needed)
        usual = _layers_per_model(component_sets, rng)
        while groups:
            if not any(group.barely_begun for group in groups):
                if not checks:  # one early, to estimate the time of the others
                    check(meter)
                    checks += 1
                left_for_checks = (LEAST_CHECKS - checks) * took["check"]
                if not fits("part", min(FOR_PARTS * seconds, seconds - left_for_checks)):
                    break
            require_time()
            start = time.monotonic()
            # Kinds without a fit have an infinite error; they take turns.
            group = max(groups, key=lambda group: (group.doubt() * group.share**0.5, -len(group.points)))
            if not group.left:
                break
            candidate = group.take()
            point = candidate.measure(meter)
            group.points.append((candidate.features, point))
            _set_shares(groups, usual)
            add("part", start, point)
        while not checks or (checks < LEAST_CHECKS and not too_late()) or fits("check", seconds):
            check(meter)
            checks += 1
    profile.seconds += time.monotonic() - begun


def _groups(
    component_sets: Sequence[Components], settings: Sequence[Setting], profile: Profile, rng: np.random.Generator
) -> list[Group]:
    by_kind: dict[tuple[str, str], dict[Key, Candidate]] = {}
    done = {_key(p.what, p.spec, p.d, p.norm, p.source, p) for p in profile.points}
    for setting in settings:
        for components in component_sets:
            for candidate in _candidates(components, setting):
                if candidate.key not in done:
                    by_kind.setdefault((candidate.features.kind, setting.mode), {})[candidate.key] = candidate
    before = {mode: Predictor(profile, Setting(mode=mode)) for _, mode in by_kind}
    return [
        Group(list(candidates.values()), before[mode].measured(kind), rng)
        for (kind, mode), candidates in by_kind.items()
    ]


def _layers_per_model(component_sets: Sequence[Components], rng: np.random.Generator) -> dict[str, float]:
    """The mean number of layers of each kind in models of these components; and one embedding with its head."""
    models = [components.model(rng) for components in component_sets for _ in range(SAMPLED_MODELS)]
    counts = Counter(options.name for arch in models for options in arch.layers)
    return {EMBEDDING_AND_HEAD: 1.0, **{kind: count / len(models) for kind, count in counts.items()}}


def _set_shares(groups: Sequence[Group], usual: Mapping[str, float]) -> None:
    """Set each kind's share of a model's time from the measurements so far."""
    begun = [group for group in groups if group.points]
    taken = [usual.get(g.kind, 0.1) * float(np.median([point.seconds for _, point in g.points])) for g in begun]
    for group, seconds in zip(begun, taken, strict=True):
        group.share = seconds / sum(taken)


def _key(what: str, spec: str, d: int, norm: str, source: str, at: Setting | Point) -> Key:
    return what, spec, d, norm, source, at.mode, at.seq, at.batch


def _candidates(components: Components, setting: Setting) -> list[Candidate]:
    around = [
        Candidate(header, None, setting, of_embedding_and_head(header, setting)) for header in components.headers()
    ]
    norm = components.header.norm
    return around + [
        Candidate(components.header.replace({"d": d}), options, setting, of_layer(d, options, norm, setting))
        for d, options in components.layers()
    ]


def _far_apart(points: Sequence[Features], count: int) -> list[int]:
    """Indices of points, each as far as possible from those before it; the first is the one in the middle."""
    coordinates = sorted({name for point in points for name in point.place})
    names = sorted({name for point in points for name in point.names})
    place_ND = np.array([[point.place.get(name, 0.0) for name in coordinates] for point in points])
    place_ND = (place_ND - place_ND.mean(axis=0)) / np.maximum(np.ptp(place_ND, axis=0), 1e-9)
    name_NC = np.array([[hash(point.names.get(name, "")) for name in names] for point in points])
    chosen = [int((place_ND**2).sum(axis=1).argmin())] if count else []
    apart_N = np.full(len(points), np.inf)
    while len(chosen) < count:
        last = chosen[-1]
        apart_N = np.minimum(
            apart_N, ((place_ND - place_ND[last]) ** 2).sum(axis=1) + (name_NC != name_NC[last]).sum(axis=1)
        )
        chosen.append(int(apart_N.argmax()))
    return chosen
