"""Patterns and compositions of models: a front has many models, but only a few of each.

A pattern is the sequence of a model's sequence mixers; a composition is the set of them, in any order and number.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import groupby

from plait.algorithms.front import Row
from plait.core.errors import UserError
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture, architecture
from plait.model.cost import decoder_params
from plait.model.resize import match
from plait.probing.protocol import TOLERANCE, Candidate, Protocol, candidates
from plait.space.compositions import shortest
from plait.spec import Layer


def mixers_of(spec: str) -> tuple[str, ...]:
    return tuple(options.name for options in architecture(spec).layers if options.kind == "sequence")


def pattern_name(spec: str) -> str:
    """`attn×4`, `gla+attn`, `(gla+attn)×3`, `gla×2+attn`."""
    names = mixers_of(spec)
    pattern = shortest(names)
    times = len(names) // len(pattern) if pattern else 1
    runs = [(name, len(list(run))) for name, run in groupby(pattern)]
    inside = "+".join(name if count == 1 else f"{name}×{count}" for name, count in runs)
    if times == 1:
        return inside
    return f"{inside}×{times}" if len(runs) == 1 else f"({inside})×{times}"


def compositions(rows: Sequence[Row], size: str) -> list[list[Row]]:
    """The rows grouped by composition: the largest model of each first, the composition of the largest model first.

    Models without a sequence mixer are left out: they have no pattern to probe.
    """
    grouped: dict[frozenset[str], list[Row]] = {}
    for row in sorted(rows, key=lambda row: -row[size]):
        if mixers := mixers_of(row["spec"]):
            grouped.setdefault(frozenset(mixers), []).append(row)
    return list(grouped.values())


def families(spec: str) -> frozenset[str]:
    """The families of a model's mixers, used to choose diverse candidates: all mixers with a KV cache count as
    `attention`."""
    arch = architecture(spec)
    sequence = [options for options in arch.layers if options.kind == "sequence"]
    return frozenset("attention" if o.cost(arch.header.d, 1).kv_cache else o.name for o in sequence)


def few_of(all_compositions: Sequence[list[Row]], count: int) -> list[list[Row]]:
    """Choose `count` diverse compositions: first those with a new set of families, among these the one whose families
    were chosen least often, and among equals the one with the largest model. The largest models alone would often
    belong to one family, and size says little about the loss."""
    sets: Counter[frozenset[str]] = Counter()
    taken: Counter[str] = Counter()
    left = [(families(composition[0]["spec"]), composition) for composition in all_compositions]
    chosen: list[list[Row]] = []
    while left and len(chosen) < count:
        few = min(left, key=lambda pair: (sets[pair[0]], sum(taken[name] for name in pair[0]) / len(pair[0])))
        left.remove(few)
        sets[few[0]] += 1
        taken.update(few[0])
        chosen.append(few[1])
    return chosen


def probe_candidate(spec: str, protocol: Protocol) -> Candidate:
    """A model's pattern at the probe's size: its mixers in order, each as in `plait probe MIXER`, with the same number
    of parameters per layer for all patterns."""
    layers = tuple(_probe_layer(options, protocol) for options in architecture(spec).layers)
    arch = Architecture(protocol.header, layers)
    plain = _probe_mixer("attn", protocol).arch
    target = round(decoder_params(plain) * len(mixers_of(spec)) / len(mixers_of(plain.text)))
    note = ""
    with suppress(UserError):
        arch = match(arch, params=target, tolerance=TOLERANCE)
    if abs(decoder_params(arch) / target - 1) > TOLERANCE:
        note = f"parameters not matched ({decoder_params(arch):,} against {target:,})"
    return Candidate(pattern_name(spec), arch, note)


def _probe_layer(options: MixerOptions, protocol: Protocol) -> MixerOptions:
    if options.kind == "sequence":
        return _probe_mixer(str(Layer(options.name)), protocol).arch.layers[0]
    inner = getattr(options, "inner", None)
    return dataclasses.replace(options, inner=protocol.inner) if isinstance(inner, int) else options  # type: ignore[call-arg]


def _probe_mixer(name: str, protocol: Protocol) -> Candidate:
    return candidates([name], protocol, baselines=False)[0]
