"""A simulated machine: profiles with a known truth."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest

from plait.device.features import of_embedding_and_head, of_layer
from plait.device.memory import Memory
from plait.device.profile import Point, Profile
from plait.device.quantities import Setting
from plait.mixers.options import MixerOptions
from plait.mixers.table import load
from plait.model.architecture import Architecture
from plait.model.cost import model_cost
from plait.spec import Header

HEADER = Header(d=64, vocab=500)
KEPT = 3_000_000  # bytes that the made-up machine's libraries keep
WHOLE = 1.04  # what its models take over their parts


class FakeMeter:
    """Stands for the process that measures memory, which takes seconds to start; `test_memory` has the real one."""

    def __enter__(self) -> FakeMeter:
        return self

    def __exit__(self, *exception: object) -> None: ...

    def measure(self, arch: Architecture, setting: Setting) -> Memory:
        weights = 4 * model_cost(arch).total_params
        return Memory(peak=weights + 5, weights=weights, state=2, activations=3)


class Machine:
    """Times follow a roofline; `speed` is how fast it is."""

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        self.asked: list[str] = []

    def layer(self, d: int, options: MixerOptions, norm: str, setting: Setting) -> Point:
        self.asked.append(str(options.to_layer()))
        terms = of_layer(d, options, norm, setting).terms
        seconds = (2e-5 + 1e-11 * terms[1] + 3e-11 * terms[2]) / self.speed
        activations = int(4 * (2 * terms[4] + terms[5]))
        made = self._point("layer", str(options.to_layer()), d, norm, setting, seconds, activations)
        return replace(made, source=options.source_hash)

    def embedding_and_head(self, header: Header, setting: Setting) -> Point:
        self.asked.append("outside")
        terms = of_embedding_and_head(header, setting).terms
        seconds = (5e-5 + 1e-11 * terms[1]) / self.speed
        return self._point("outside", header.text, header.d, header.norm, setting, seconds, int(4 * terms[5]))

    def model(self, arch: Architecture, setting: Setting) -> Point:
        header, number = arch.header, setting.number_bytes
        parts = [self.layer(header.d, options, header.norm, setting) for options in arch.layers]
        around = self.embedding_and_head(header, setting)
        seconds = WHOLE * (around.seconds + sum(part.seconds for part in parts))
        cost = model_cost(arch, seq=setting.seq)
        state, highest = 0, 0
        for part, layer in zip(parts, cost.layers, strict=True):
            highest = max(highest, state + part.activations)
            state += int(number * (layer.fixed_state + layer.conv_state + layer.kv_cache))
        highest = max(highest, state + around.activations)
        memory = number * cost.total_params + highest + KEPT
        made = self._point("model", arch.text, header.d, header.norm, setting, seconds, highest - state)
        return replace(made, memory=memory, source=arch.source_hash)

    def _point(
        self, what: str, spec: str, d: int, norm: str, setting: Setting, seconds: float, activations: int
    ) -> Point:
        where = {"mode": setting.mode, "seq": setting.seq, "batch": setting.batch}
        return Point(what, spec, d, norm, **where, seconds=seconds, noise=0.01, noisy=False, activations=activations)  # type: ignore[arg-type]


def filled(machine: Machine, setting: Setting, models: Sequence[Architecture] = ()) -> Profile:
    profile = Profile.here(setting)
    rng = np.random.default_rng(0)
    for d in (64, 128, 256, 512):
        profile.points.append(machine.embedding_and_head(HEADER.replace({"d": d}), setting))
        for _ in range(6):
            inner, heads = int(rng.integers(64, 2048)), int(rng.choice([2, 4, 8]))
            profile.points.append(machine.layer(d, load("mlp")(inner=inner), "rms", setting))
            profile.points.append(machine.layer(d, load("attn")(heads=heads), "rms", setting))
    profile.points += [machine.model(arch, setting) for arch in models]
    return profile


@pytest.fixture
def meter() -> FakeMeter:
    return FakeMeter()


@pytest.fixture
def machine() -> Machine:
    return Machine()


@pytest.fixture
def fill() -> Callable[..., Profile]:
    return filled
