"""Resize an architecture to a given fixed state, parameter count, or both, so that comparisons are fair.

MAD compares recurrent architectures at one total state and one parameter count (Poli et al. 2024, arXiv:2403.17844,
Sec. 3.2 and App. B.3.2): "we prioritize keeping the shape of the layer fixed, over the state dimension". So the state
is matched first through options that set nothing else, and only then through expansion factors or heads; parameters are
matched through the inner width of the channel mixers, which have no state. Layer kinds, their order and d never change.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from plait.core.errors import UserError
from plait.core.units import percent
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture, architecture
from plait.model.cost import decoder_params, total_state
from plait.spec import Spec

#: Options of sequence mixers that change their parameters; used if there is no channel mixer to adjust.
_EXPANSIONS = ("expand", "expand_v")
_WHOLE_EXPANSIONS = (1, 2, 3, 4)
_COMBINATIONS = 50_000

Change = Mapping[MixerOptions, MixerOptions]


def match(
    spec: str | Spec | Architecture,
    *,
    state: int | None = None,
    params: int | None = None,
    tolerance: float = 0.01,
) -> Architecture:
    """The architecture with its total fixed state and its decoder's parameters within `tolerance` of the targets.

    What already matches is not changed. If the targets cannot be reached, a `UserError` names the nearest possible
    values.
    """
    arch = architecture(spec)
    for name, target in (("state", state), ("params", params)):
        if target is not None and target < 1:
            raise UserError(f"{name}={target} given; must be at least 1.")
    if state is None and params is None:
        raise UserError("nothing to match: give a state, a parameter count, or both.")
    if params is None or _inner_layers(arch):
        if state is not None:
            arch = _match_state(arch, state, tolerance)
        return arch if params is None else _match_inner(arch, params, tolerance)
    return _match_expansion(arch, params, state, tolerance)


def _match_state(arch: Architecture, target: int, tolerance: float, without: tuple[str, ...] = ()) -> Architecture:
    d = arch.header.d
    if _within(total_state(arch), target, tolerance):
        return arch
    counts = {o: n for o, n in Counter(arch.layers).items() if _state(o, d)}
    if not counts:
        raise UserError(f"{arch.text}: no layer has a fixed state to resize.")
    knobs = {o: tuple(k for k in o.state_knobs if k not in without) for o in counts}
    nearest = arch
    for depth in range(1, 1 + max(len(k) for k in knobs.values())):
        resized = _nearest_state(arch, counts, {o: k[:depth] for o, k in knobs.items()}, target, tolerance)
        if _within(total_state(resized), target, tolerance):
            return resized
        nearest = min(nearest, resized, key=lambda a: abs(total_state(a) - target))
    raise _unreachable("fixed state", target, tolerance, total_state(nearest), nearest)


def _nearest_state(
    arch: Architecture,
    counts: Mapping[MixerOptions, int],
    knobs: Mapping[MixerOptions, tuple[str, ...]],
    target: int,
    tolerance: float,
) -> Architecture:
    """The best combination of settings, one for each distinct layer.

    The best is near the target (an error of `tolerance` counts 1) with all layers scaled equally (a layer that gets
    twice its share counts 1); among equals, the one that changes the later knobs least.
    """
    d = arch.header.d
    scale = target / sum(n * _state(o, d) for o, n in counts.items())
    most = max(2, int(_COMBINATIONS ** (1 / len(counts))))
    choices = []
    for options in counts:
        share = _state(options, d) * scale
        settings = [
            (new, _state(new, d), abs(math.log2(_state(new, d) / share)), _changes(options, new, knobs[options]))
            for new in _settings(options, knobs[options], d, scale)
        ]
        choices.append(sorted(settings, key=lambda s: s[2:])[:most])

    def changed(combination: tuple[Any, ...]) -> Architecture:
        return _changed(arch, {old: new for old, (new, *_) in zip(counts, combination, strict=True)})

    def badness(combination: tuple[Any, ...]) -> tuple[Any, ...]:
        if arch.links:
            try:
                changed(combination)
            except UserError:  # one layer no longer has what another reads from it
                return math.inf, []
        total = sum(n * state for n, (_, state, _, _) in zip(counts.values(), combination, strict=True))
        uneven = sum(unevenness for _, _, unevenness, _ in combination) if len(combination) > 1 else 0.0
        return round(abs(total / target - 1) / max(tolerance, 1e-9) + uneven, 9), [
            changes for *_, changes in combination
        ]

    return changed(min(itertools.product(*choices), key=badness))


def _match_inner(arch: Architecture, target: int, tolerance: float) -> Architecture:
    """Scale the channel mixers' inner widths by one factor, to multiples as round as the tolerance allows."""
    if _within(decoder_params(arch), target, tolerance):
        return arch
    nearest = arch
    for grain in (64, 32, 16, 8, 4, 2, 1):
        low, high = 0.0, 1.0
        while decoder_params(_scaled(arch, high, grain)) < target:
            high *= 2
        for _ in range(40):  # bisection steps
            middle = (low + high) / 2
            low, high = (middle, high) if decoder_params(_scaled(arch, middle, grain)) < target else (low, middle)
        for scale in (low, high):
            scaled = _scaled(arch, scale, grain)
            nearest = min(nearest, scaled, key=lambda a: abs(decoder_params(a) - target))
        if _within(decoder_params(nearest), target, tolerance):
            return nearest
    raise _unreachable("parameter count", target, tolerance, decoder_params(nearest), nearest)


def _match_expansion(arch: Architecture, target: int, state: int | None, tolerance: float) -> Architecture:
    """Without channel mixers: one expansion factor for all mixers that have one, matching the state again after each
    try."""
    knob = {o: next((k for k in _EXPANSIONS if _has(o, k)), None) for o in arch.layers}
    if not any(knob.values()):
        raise UserError(f"{arch.text}: no layer has an inner width or an expansion to resize.")
    whole = any(k and not _is_float(o, k) for o, k in knob.items())
    nearest: Architecture | None = None
    for value in (None, *(_WHOLE_EXPANSIONS if whole else _fractions(64))):
        try:
            change = {o: dataclasses.replace(o, **{k: value}) for o, k in knob.items() if k and value is not None}
            resized = _changed(arch, change)
            if state is not None:
                resized = _match_state(resized, state, tolerance, without=_EXPANSIONS)
        except UserError:
            continue
        if nearest is None or abs(decoder_params(resized) - target) < abs(decoder_params(nearest) - target):
            nearest = resized
        if value is None and _within(decoder_params(resized), target, tolerance):
            return resized
    if nearest is None:
        raise UserError(f"{arch.text}: no expansion allows a fixed state within {percent(tolerance, 1)} of {state}.")
    if not _within(decoder_params(nearest), target, tolerance):
        raise _unreachable("parameter count", target, tolerance, decoder_params(nearest), nearest)
    return nearest


def _settings(options: MixerOptions, knobs: tuple[str, ...], d: int, scale: float) -> Iterator[MixerOptions]:
    """Every valid setting of the knobs that may be useful for a state `scale` times as large, including the current
    one."""
    yield options
    for values in itertools.product(*(_values(options, knob, d, scale) for knob in knobs)):
        setting = dataclasses.replace(options, **dict(zip(knobs, values, strict=True)))
        try:
            setting.check(d)
        except UserError:
            continue
        if _state(setting, d):
            yield setting


def _values(options: MixerOptions, knob: str, d: int, scale: float) -> Sequence[Any]:
    if knob in ("heads", "head_dim"):
        return [n for n in range(1, d + 1) if d % n == 0]
    if _is_float(options, knob):
        return _fractions(16)
    if knob in _EXPANSIONS:
        return _WHOLE_EXPANSIONS
    # The state has no natural bound; beyond a few times its share, another knob would have to shrink too far.
    return range(1, 1 + math.ceil(8 * max(1, scale * getattr(options, knob))))


def _fractions(steps: int) -> list[float]:
    """Expansion factors from 1/4 to 4: exact in binary, short in decimal."""
    return [n / steps for n in range(steps // 4, 4 * steps + 1)]


def _changes(old: MixerOptions, new: MixerOptions, knobs: tuple[str, ...]) -> tuple[float, ...]:
    """How far each knob moved, in doublings, the last knob first: moving a later one is worse."""
    return tuple(abs(math.log2(getattr(new, k) / getattr(old, k))) for k in reversed(knobs))


def _state(options: MixerOptions, d: int) -> int:
    return int(options.cost(d, 1).fixed_state)


def _has(options: MixerOptions, knob: str) -> bool:
    return any(f.name == knob for f in dataclasses.fields(options))


def _is_float(options: MixerOptions, knob: str) -> bool:
    return any(f.name == knob and isinstance(f.default, float) for f in dataclasses.fields(options))


def _inner_layers(arch: Architecture) -> list[Any]:
    """The distinct channel mixers whose inner width can be set."""
    return [o for o in dict.fromkeys(arch.layers) if o.kind == "channel" and _has(o, "inner")]


def _scaled(arch: Architecture, scale: float, grain: int) -> Architecture:
    widths = {o: o.inner or o.inner_width(arch.header.d) for o in _inner_layers(arch)}
    return _changed(
        arch, {o: dataclasses.replace(o, inner=grain * max(1, round(scale * w / grain))) for o, w in widths.items()}
    )


def _changed(arch: Architecture, change: Change) -> Architecture:
    layers = tuple(change.get(options, options) for options in arch.layers)
    for options in set(layers):
        options.check(arch.header.d)
    changed = Architecture(arch.header, layers)
    for place, lender in changed.links.items():
        if lender >= 0:
            layers[place].check_lender(layers[lender], arch.header.d)
    return changed


def _within(value: int, target: int, tolerance: float) -> bool:
    return abs(value - target) <= tolerance * target


def _unreachable(what: str, target: int, tolerance: float, nearest: int, arch: Architecture) -> UserError:
    return UserError(
        f"no setting gives a {what} within {percent(tolerance, 1)} of {target:,}; "
        f"the nearest reachable is {nearest:,}: {arch.text}"
    )
