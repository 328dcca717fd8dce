"""The components of a space's models (headers, widths, and the options of every slot of a layer), and the features that
predict a layer's time and memory, computed from its options alone.

`terms` are additive: a roofline of fixed cost, arithmetic and memory traffic, each in its own unit, whose weights a
regression fits. `place` is the layer's position among others of its kind, in octaves, for what the terms do not
explain.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from plait.core.errors import UserError
from plait.device.quantities import Setting
from plait.mixers.options import MIXING, NOT_SHARED, MixerOptions
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost
from plait.spec import Header

DEEPEST_CHECK = 8  # most layers of a whole model that is measured; deeper ones take longer and add no information


class Spacelike(Protocol):
    """The required interface of a search space: slots with `options`, depths, and in `headers.all` every header or
    None."""

    slots: Any
    depths: tuple[int, ...]
    headers: Any


@dataclass(frozen=True)
class Components:
    """A space reduced to its components. `None` among a slot's options: the slot may be empty."""

    header: Header
    widths: tuple[int, ...]
    slots: tuple[tuple[MixerOptions | None, ...], ...]
    depths: tuple[int, int]

    @classmethod
    def of(cls, space: Spacelike) -> list[Components]:
        """One set of components for every header that differs in more than the width."""
        widths: dict[Header, list[int]] = {}
        for header in space.headers.all:
            if header is not None:
                widths.setdefault(header.replace({"d": Header().d, "d_embed": 0}), []).append(header.d)
        slots = tuple(tuple(slot.options) for slot in space.slots)
        return [
            cls(header, tuple(dict.fromkeys(ds)), slots, (space.depths[0], space.depths[-1]))
            for header, ds in widths.items()
        ]

    def headers(self) -> list[Header]:
        return [self.header.replace({"d": d}) for d in self.widths]

    def layers(self) -> Iterator[tuple[int, MixerOptions]]:
        """Every layer at every width that it supports."""
        for d in self.widths:
            for options in dict.fromkeys(mixer for slot in self.slots for mixer in slot if mixer is not None):
                if _fits(options, d):
                    yield d, options

    def model(self, rng: np.random.Generator) -> Architecture:
        """An architecture made of randomly chosen components."""
        d = int(rng.choice(self.widths))
        depth = int(rng.integers(self.depths[0], max(self.depths[0], min(self.depths[1], DEEPEST_CHECK)) + 1))
        header, layers = self.header.replace({"d": d}), list[MixerOptions]()
        fitting = [[mixer for mixer in slot if mixer is None or _fits(mixer, d)] for slot in self.slots]
        for slot in (slot for _ in range(depth) for slot in fitting):
            possible = [mixer for mixer in slot if mixer is None or _fits_behind(header, layers, mixer)]
            chosen = possible[int(rng.integers(len(possible)))] if possible else None
            layers += [] if chosen is None else [chosen]
        return Architecture(header, tuple(layers)) if layers else self.model(rng)


def _fits(options: MixerOptions, d: int) -> bool:
    try:
        options.check(d)
    except UserError:
        return False
    return True


def _fits_behind(header: Header, before: list[MixerOptions], options: MixerOptions) -> bool:
    """Whether the layers before it include those it reads from or shares weights with."""
    if not options.reads and options.share == NOT_SHARED:
        return True
    try:
        architecture(Architecture(header, (*before, options)).spec)
    except UserError:
        return False
    return True


#: Options that change neither a layer's shape nor its code path.
WITHOUT_COST = (
    "theta", "qk_eps", "t_min", "t_max", "tau", "balance", "rope_scaling", "rope_factor", "rope_len", "rope_low",
    "rope_high", "share",
)  # fmt: skip
EMBEDDING_AND_HEAD = "outside"  # as profiles call the embedding and the head
HEADER_NUMBERS = ("vocab", "d_embed", "div")
HEADER_NAMES = ("kind", "pos", "tie", "embed", "norm", "final_norm", "embed_norm", "head_bias", "segments")


@dataclass(frozen=True)
class Features:
    kind: str  # the mixer's name; points of one kind are compared with each other
    terms: tuple[float, ...]
    place: dict[str, float]
    names: dict[str, str]  # options that are not numbers, and the preceding norm


def of_layer(d: int, options: MixerOptions, norm: str, setting: Setting) -> Features:
    new, held, batch = setting.new_tokens, setting.held_tokens, setting.batch
    cost = options.cost(d, new, held)
    mixing = float(cost.flops.get(MIXING, 0))
    weights = float(cost.generation_flops) - mixing
    values: dict[str, Any] = {field.name: getattr(options, field.name) for field in dataclasses.fields(options)}
    heads = float(values.get("heads") or 0)
    state = float(cost.fixed_state + cost.conv_state + cost.kv_cache)
    tokens = batch * new
    terms = (
        1.0,
        batch * weights,
        batch * mixing,
        float(cost.total_params + sum(cost.shared.values())),  # shared weights are read in every layer that uses them
        float(tokens * d),
        batch * weights / (2 * d),  # outputs of products with weights
        tokens * heads * (held + new),
        batch * state,
    )
    place = {"d": math.log2(d), **_setting_place(setting)}
    names = {"norm": norm if options.prenorm else "", "mode": setting.mode}
    for name in values:
        if name in WITHOUT_COST:
            continue
        value = _effective(options, name, values, d, new + held)
        if isinstance(value, bool | str):
            names[name] = str(value)
        else:
            place[name] = math.copysign(math.log2(1 + abs(value)), value)
    return Features(options.name, terms, place, names)


def of_embedding_and_head(header: Header, setting: Setting) -> Features:
    """Embedding, final norm and output layer."""
    cost = model_cost(Architecture(header, ()), seq=setting.new_tokens)
    tokens = setting.batch * setting.new_tokens
    terms = (
        1.0,
        float(setting.batch * cost.full_output_flops),
        float(setting.batch * cost.input_flops),
        float(cost.total_params),
        float(tokens * header.d),
        float(tokens * header.vocab),
    )
    numbers = {name: math.log2(1 + (getattr(header, name) or header.d)) for name in HEADER_NUMBERS}
    place = {"d": math.log2(header.d), **_setting_place(setting), **numbers, "bands": float(len(header.cutoffs))}
    names = {name: str(getattr(header, name)) for name in HEADER_NAMES}
    return Features(EMBEDDING_AND_HEAD, terms, place, {**names, "mode": setting.mode})


def _setting_place(setting: Setting) -> dict[str, float]:
    return {"seq": math.log2(setting.seq), "batch": math.log2(setting.batch)}


def _effective(options: MixerOptions, name: str, values: dict[str, Any], d: int, length: int) -> bool | str | float:
    """The effective value of an option, with defaults resolved where 0 means a default."""
    value: bool | str | float = values[name]
    if name == "inner" and (width := options.inner_width(d)) is not None:
        return float(width)
    if name == "head_dim" and not value and (width := options.head_width(d)) is not None:
        return float(width)
    if name == "kv_heads" and not value and "heads" in values:
        return float(values["heads"])
    if name == "window":
        return float(min(value or length, length))
    return value if isinstance(value, bool | int | float) else str(value)
