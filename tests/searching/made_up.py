"""A machine that is arithmetic, so that profiles need no measuring: nothing here takes time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from plait.device.features import Components
from plait.device.profile import Point, Profile
from plait.device.quantities import Setting
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture
from plait.model.cost import model_cost
from plait.space.space import Space
from plait.spec import Header

EACH = 5  # layers of every kind
KEPT = 2_000_000  # bytes


def profile_of(space: Space, setting: Setting) -> Profile:
    """Every kind of layer of the space, its headers, and as many whole models as a search asks for."""
    profile = Profile.here(setting)
    extend(profile, Components.of(space), [setting])
    return profile


def extend(profile: Profile, component_sets: Sequence[Components], settings: Sequence[Setting], **_: object) -> None:
    rng = np.random.default_rng(len(profile.points))
    for setting in settings:
        for components in component_sets:
            profile.points += [_outside(header, setting) for header in _some(rng, components.headers())]
            layers = list(components.layers())
            for kind in dict.fromkeys(options.name for _, options in layers):
                for d, options in _some(rng, [(d, options) for d, options in layers if options.name == kind]):
                    profile.points.append(_layer(d, options, components.header.norm, setting))
            profile.points += [_model(components.model(rng), setting) for _ in range(4)]
    profile.seconds += 60.0


def _some(rng: np.random.Generator, things: list) -> list:  # type: ignore[type-arg]
    return [things[at] for at in rng.choice(len(things), min(EACH, len(things)), replace=False)]


def _layer(d: int, options: MixerOptions, norm: str, setting: Setting) -> Point:
    flops = float(options.cost(d, setting.new_tokens, setting.held_tokens).total_flops)
    seconds = 2e-5 + 1e-11 * setting.batch * flops
    made = _point("layer", str(options.to_layer()), d, norm, setting, seconds, 12 * setting.new_tokens * d)
    return replace(made, source=options.source_hash)


def _outside(header: Header, setting: Setting) -> Point:
    cost = model_cost(Architecture(header, ()), seq=setting.new_tokens)
    seconds = 5e-5 + 1e-11 * setting.batch * cost.flops
    return _point(
        "outside", header.text, header.d, header.norm, setting, seconds, 4 * setting.new_tokens * header.vocab
    )


def _model(arch: Architecture, setting: Setting) -> Point:
    d, norm = arch.header.d, arch.header.norm
    parts = [_outside(arch.header, setting), *(_layer(d, options, norm, setting) for options in arch.layers)]
    cost = model_cost(arch, seq=setting.new_tokens)
    activations = max(part.activations for part in parts) + cost.state_bytes()
    memory = 4 * cost.total_params + activations + KEPT
    seconds = 1.03 * sum(part.seconds for part in parts)
    return replace(_point("model", arch.text, d, norm, setting, seconds, activations, memory), source=arch.source_hash)


def _point(
    what: str, spec: str, d: int, norm: str, setting: Setting, seconds: float, activations: int, memory: int = 0
) -> Point:
    return Point(
        what, spec, d, norm, setting.mode, setting.seq, setting.batch, seconds, 0.01, False, int(activations),
        int(memory),
    )  # fmt: skip
