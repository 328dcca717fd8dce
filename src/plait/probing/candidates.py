"""What is probed: from what a user types to architectures that are fair to compare.

A bare mixer (`gla`, `gla[heads=8]`, `my_mixer.py`) stands for two blocks of it with SwiGLU at the protocol's width, or
four layers of Mamba, as the paper builds them (App. B.3), matched in state and parameters. A spec or a preset is taken
as it is; only its vocabulary and kind are the task's. Presets of the paper's probe (`mad21`) are scaled to the
protocol's width where that is another: their states stay equal, for all grow alike.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import MappingProxyType

from plait.core.errors import UserError
from plait.core.registry import split_options, split_path
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture, architecture, options_of
from plait.model.cost import decoder_params, model_cost, total_state
from plait.model.resize import match
from plait.model.user_mixers import load_mixer
from plait.probing.protocol import Protocol
from plait.spec import Header, Layer, Spec, has_header, parse, presets

BASELINES = ("attn", "gla", "mamba", "hyena")
PAPER_WIDTH = 128  # of every architecture in the paper's probe
TOLERANCE = 0.05  # how near matched state and parameters must come
#: mixer → the preset whose first two layers are its block in the paper's probe.
PAPER_BLOCKS = {
    "mamba": "mad-mamba",
    **{name: f"mad-{name}-swiglu" for name in ("hyena", "mh-hyena", "hyena-experts", "gla", "attn")},
}
#: Mixers that stand for a whole block: no channel mixer beside them.
WHOLE_BLOCKS = ("mamba",)
#: Options that grow with the width, so that head dimensions and ratios stay the paper's.
_WITH_WIDTH = ("heads", "head_dim", "inner", "width")
NOTHING: Mapping[str, object] = MappingProxyType({})


@dataclass(frozen=True)
class Candidate:
    """One architecture to probe."""

    name: str
    arch: Architecture
    note: str = ""  # what was, or could not be, matched
    baseline: bool = False
    preset: bool = False

    @property
    def source(self) -> str:
        """The hashes of the users' mixers in it."""
        return self.arch.source_hash

    @property
    def params(self) -> int:
        return decoder_params(self.arch)

    @property
    def state(self) -> int:
        return total_state(self.arch)

    def kv_cache(self, tokens: int) -> int:
        return model_cost(self.arch, seq=tokens).kv_cache


def candidates(
    given: Sequence[str],
    protocol: Protocol,
    *,
    baselines: bool = True,
    matched: bool = True,
    controls: Sequence[str] = BASELINES,
) -> list[Candidate]:
    """The architectures to probe, baselines last, matched in state and parameters unless `matched` is false."""
    found = [candidate(text, protocol) for text in given]
    if baselines and len(found) == 1:
        found += [replace(candidate(name, protocol), baseline=True) for name in controls if name != given[0]]
    found = list({one.arch.hash + one.source: one for one in reversed(found)}.values())[::-1]
    return [_matched(one, protocol) for one in found] if matched else found


def candidate(given: str, protocol: Protocol) -> Candidate:
    if split_path(split_options(given)[0]):
        options = load_mixer(given)
        return Candidate(str(options.to_layer()), _around(options.to_layer(), protocol))
    if has_header(given):
        return Candidate(given, architecture(given))
    if presets.lookup(given) is not None:
        arch = architecture(given)
        narrowed = given.lower() in presets.suite("mad21") and arch.header.d != protocol.d
        note = f"the preset at width {protocol.d}" if narrowed else "the preset as written"
        return Candidate(given, _at_width(arch, protocol) if narrowed else arch, note, preset=True)
    layers = parse(given).layers
    if len(layers) > 1:
        return Candidate(given, architecture(given))
    if options_of(layers[0]).kind == "sequence":
        return Candidate(given, _around(layers[0], protocol))
    raise UserError(f"'{given}' mixes channels only, so it sees one token at a time; give a sequence mixer.")


def _around(layer: Layer, protocol: Protocol) -> Architecture:
    """Two blocks around one mixer. Without options of its own it has those of the paper, and the paper's block has the
    channel mixer of every other mixer's."""
    as_in_paper = not layer.options and layer.name in PAPER_BLOCKS
    block = parse(presets.describe(PAPER_BLOCKS[layer.name if as_in_paper else "attn"]).text).layers[:2]
    if not as_in_paper:
        block = (layer, layer if layer.name in WHOLE_BLOCKS else block[1])
    header = Header(d=PAPER_WIDTH, vocab=16)
    return _at_width(architecture(Spec(header, block * 2)), protocol, keep=dict(layer.options))


def _at_width(arch: Architecture, protocol: Protocol, keep: Mapping[str, object] = NOTHING) -> Architecture:
    """The paper's architecture at the protocol's width; options a user gave are kept as they are."""
    layers = tuple(options.each(lambda mixer: _scaled(mixer, arch.header.d, protocol, keep)) for options in arch.layers)
    for options in set(layers):
        options.check(protocol.d)
    return Architecture(protocol.header, layers)


def _scaled(options: MixerOptions, d: int, protocol: Protocol, keep: Mapping[str, object]) -> MixerOptions:
    known = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
    change = {
        name: max(1, round(known[name] * protocol.d / d))
        for name in _WITH_WIDTH
        if name not in keep and type(known.get(name)) is int and known[name] > 0
    }
    if options.name == "attn" and "heads" in change:
        change["heads"] = max(1, protocol.d // protocol.head_dim)
    if options.name == "swiglu" and "inner" in change:
        change["inner"] = protocol.inner
    return dataclasses.replace(options, **change)


def _matched(one: Candidate, protocol: Protocol) -> Candidate:
    """The same state as the paper's recurrent architectures, the same parameters as its Transformer; where that cannot
    be, the note says so. A spec written out and a preset are left alone: their sizes are the user's or the paper's."""
    if one.preset:
        return one
    if has_header(one.name):
        return replace(one, note="taken as given")
    notes, arch = [], one.arch
    if total_state(arch):
        try:
            arch = match(arch, state=protocol.state, tolerance=TOLERANCE)
        except UserError:
            notes.append(f"state not matched ({total_state(arch):,} against {protocol.state:,})")
    target = decoder_params(_around(parse("attn").layers[0], protocol))
    if _has_inner(arch):  # else only expansions could change, and those change what the mixer is
        with suppress(UserError):
            arch = match(arch, params=target, tolerance=TOLERANCE)
    if abs(decoder_params(arch) / target - 1) > TOLERANCE:
        notes.append(f"parameters not matched ({decoder_params(arch):,} against {target:,})")
    return replace(one, arch=arch, note="; ".join(notes))


def _has_inner(arch: Architecture) -> bool:
    return any(o.kind == "channel" and o.has("inner") for o in arch.layers)
