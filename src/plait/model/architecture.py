"""An architecture: a spec whose layers are all known, typed and checked. No torch yet."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from string import ascii_lowercase
from typing import TypedDict

from plait.core.errors import UserError, did_you_mean
from plait.core.result import card
from plait.core.user_files import MixerSource
from plait.mixers.options import NOT_SHARED, MixerOptions, OptionError
from plait.mixers.table import MIXERS
from plait.spec import Header, Layer, Spec, SpecError, load

_MISSING = {
    "keys": "reads the keys and values of an earlier attn without a window; put one before it.",
    "memory": "reads the memory of an earlier mamba or mamba2; put one before it.",
}


class _Spec(TypedDict):
    spec: str


class Identity(_Spec, total=False):
    """The part of a result's key that identifies its architecture."""

    sources: dict[str, str]  # user's mixer → hash of its source


@dataclass(frozen=True)
class Architecture:
    """What a model is built from, and part of the key of its results."""

    header: Header
    layers: tuple[MixerOptions, ...]

    def __post_init__(self) -> None:
        if any(options.share != NOT_SHARED for options in self.layers):
            object.__setattr__(self, "layers", canonical_share_names(self.layers))

    def __repr__(self) -> str:
        """As it is written: all fields of all layers would fill a screen."""
        return f"Architecture({self.text!r})"

    @cached_property
    def spec(self) -> Spec:
        """The spec in its shortest spelling (no option equal to its default)."""
        return Spec(self.header, tuple(layer.to_layer() for layer in self.layers))

    @property
    def num_layers(self) -> int:
        """Layers as papers and Hugging Face count them: a sequence mixer and the channel mixers up to the next one.

        `layers` has the mixers one by one. Channel mixers ahead of the first sequence mixer belong to the first layer;
        without any sequence mixer, each mixer is a layer.
        """
        return sum(options.kind == "sequence" for options in self.layers) or len(self.layers)

    @cached_property
    def links(self) -> dict[int, int]:
        """Layer → the nearest earlier layer with the tensors that it reads; −1 is the embeddings. Empty for most
        models."""
        links: dict[int, int] = {}
        nearest = {"embedding": -1}
        for place, options in enumerate(self.layers):
            if options.reads:
                if options.reads not in nearest:
                    raise UserError(f"{options.name} {_MISSING[options.reads]}")
                links[place] = nearest[options.reads]
            if options.lends:
                nearest[options.lends] = place
        return links

    @property
    def text(self) -> str:
        return self.spec.text

    @property
    def hash(self) -> str:
        """The identity of the architecture: equal for every spelling of it."""
        return self.spec.hash

    def with_vocabulary(self, vocab: int) -> Architecture:
        return Architecture(self.header.with_vocabulary(vocab), self.layers)

    @property
    def mixer_sources(self) -> dict[str, MixerSource]:
        """The source texts of mixers that are not plait's own, by mixer name."""
        parts = [part for options in self.layers for part in options.parts]
        return {part.name: part.source for part in parts if part.source is not None}

    @property
    def source_hash(self) -> str:
        """One string that identifies the source texts of all users' mixers; empty if there are none."""
        return " ".join(sorted({source.hash for source in self.mixer_sources.values()}))

    def identity(self) -> Identity:
        """The architecture's part of a result's key: its text and, for users' mixers, the hash of their source, so that
        an edited mixer file never reuses results from before the edit."""
        sources = {name: source.hash for name, source in sorted(self.mixer_sources.items())}
        return {"spec": self.text, "sources": sources} if sources else {"spec": self.text}

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        counted = Counter(options.to_layer().text for options in self.layers)
        rows = [{"mixer": text, "count": count} for text, count in counted.items()]
        return card(rows, headline=self.text)


def canonical_share_names(layers: Sequence[MixerOptions]) -> tuple[MixerOptions, ...]:
    """The layers with the names in `share=NAME` replaced by a, b, c … in order of first use.

    The name only identifies which layers of one mixer share weights: two specs that differ only in it are the same
    model and have the same text and hash.
    """
    names: dict[tuple[str, str], str] = {}
    used: Counter[str] = Counter()  # names given so far, by mixer
    renamed = []
    for options in layers:
        if options.share != NOT_SHARED:
            group = (options.name, options.share)
            if group not in names:
                count = used[options.name]
                names[group] = ascii_lowercase[count] if count < len(ascii_lowercase) else f"s{count + 1}"
                used[options.name] += 1
            options = replace(options, share=names[group])
        renamed.append(options)
    return tuple(renamed)


def load_mixers(files: Sequence[str | Path]) -> None:
    """Execute users' files so that specs can refer to their mixers."""
    if files:
        from plait.core.registry import split_path
        from plait.model.user_mixers import load_mixer

        for file in files:
            if split_path(str(file)) is None:
                raise UserError(f"--mixers {file}: give a Python file, my_mixer.py or my_mixer.py:Class.")
            load_mixer(file)


def require_sound(models: Iterable[Architecture]) -> None:
    """Refuse language models with a user's mixer that sees later tokens or miscounts its parameters. The first would
    have the lowest loss of all, the second would be matched with smaller or larger rivals, and neither mistake shows in
    results. For plait's own mixers, tests ensure both."""
    require_sound_layers((layer, arch.header.d) for arch in models if arch.header.kind == "lm" for layer in arch.layers)


def require_sound_layers(layers: Iterable[tuple[MixerOptions, int]]) -> None:
    """The same for layers with so many channels."""
    for layer, d in dict.fromkeys(layers):
        if any(part.name not in MIXERS.lines for part in layer.parts):
            from plait.model.user_mixers import check_sound

            check_sound(layer, d)


def architecture(
    source: str | Spec | Architecture, mixers: Mapping[str, type[MixerOptions]] | None = None
) -> Architecture:
    """Read and check spec text, a preset's name, a spec file's path, or a parsed spec.

    `mixers` (name → options class) takes precedence over registered mixers: a run folder has its own copies of users'
    mixers.
    """
    if isinstance(source, Architecture):
        return source
    spec = source if isinstance(source, Spec) else load(source)
    known: dict[Layer, MixerOptions] = {}  # a deep model repeats a few layers
    shared: dict[str, tuple[int, ...]] = {}
    owners: dict[tuple[str, str], MixerOptions] = {}
    for layer in spec.layers:
        if layer not in known:
            try:
                known[layer] = _checked(spec.header, layer, mixers or {})
                _check_sharing(known[layer].shares(spec.header.d), shared)
                _check_owner(known[layer], owners)
            except UserError as wrong:
                raise _pointing(spec, layer, wrong) from None
    arch = Architecture(spec.header, tuple(known[layer] for layer in spec.layers))
    _check_links(spec, arch)
    return arch


def options_of(layer: Layer, mixers: Mapping[str, type[MixerOptions]] | None = None) -> MixerOptions:
    """The typed options of a parsed layer; `mixers` takes precedence over registered mixers of the same name."""
    if layer.branches:
        from plait.mixers.parallel import ParallelOptions  # not needed by most

        return ParallelOptions.of(layer, tuple(options_of(branch, mixers) for branch in layer.branches))
    if mixers and layer.name in mixers:
        return mixers[layer.name].from_layer(layer)
    if layer.name not in MIXERS:
        MIXERS.discover(layer.name)
    if layer.name not in MIXERS:
        known = MIXERS.names()
        from plait.spec import presets  # needed only for error messages

        near = did_you_mean(layer.name, known) or _presets_called(layer.name, presets.names())
        near = near or did_you_mean(layer.name, presets.names())
        own = "" if near else " One of your own: --mixers my_mixer.py, or plait.load_mixer in Python."
        raise OptionError(f"unknown mixer '{layer.name}'.{near} Known: {', '.join(known)}.{own}")
    return MIXERS.load(layer.name).from_layer(layer)


def _presets_called(name: str, presets: Sequence[str], most: int = 3) -> str:
    """The presets of a family such as gpt2 or llama, which is what its name alone asks for."""
    family = [preset for preset in presets if name.lower() in preset]
    if not family or len(name) < 3:
        return ""
    more = f" and {len(family) - most} more: plait list presets --match {name.lower()}" if len(family) > most else ""
    return f" Presets: {', '.join(family[:most])}{more}."


def _check_links(spec: Spec, arch: Architecture) -> None:
    """Check that every layer that reads another layer's tensors has a suitable one before it."""
    layers = arch.layers
    readers = [place for place, options in enumerate(layers) if options.reads]
    try:
        links = arch.links
    except UserError as wrong:  # the first of its name is the one that has nothing to read from
        first = next((place for place in readers if str(wrong).startswith(layers[place].name)), readers[0])
        raise _pointing(spec, spec.layers[first], wrong) from None
    for place in readers:
        if links[place] >= 0:
            try:
                layers[place].check_lender(layers[links[place]], arch.header.d)
            except UserError as wrong:
                raise _pointing(spec, spec.layers[place], wrong) from None


def _check_owner(options: MixerOptions, owners: dict[tuple[str, str], MixerOptions]) -> None:
    """Layers that share their weights must have the same options."""
    if options.share == NOT_SHARED:
        return
    first = owners.setdefault((options.name, options.share), options)
    if first != options:
        raise UserError(f"{options.to_layer()} cannot have the weights of {first.to_layer()}: their options differ.")


def _checked(header: Header, layer: Layer, mixers: Mapping[str, type[MixerOptions]]) -> MixerOptions:
    options = options_of(layer, mixers)
    options.check(header.d)
    if options.kind == "sequence" and options.bidirectional != (header.kind == "encoder"):
        remedy = "it needs causal=false" if header.kind == "encoder" else "only kind=encoder looks ahead"
        raise UserError(f"{options.name} in a model of kind={header.kind}: {remedy}.")
    return options


def _check_sharing(wanted: dict[str, tuple[int, ...]], shared: dict[str, tuple[int, ...]]) -> None:
    """Layers that share a parameter must agree on its shape."""
    for name, shape in wanted.items():
        if shared.setdefault(name, shape) != shape:
            raise UserError(f"this layer cannot share its {name} of shape {shape}: another's are {shared[name]}.")


def _pointing(spec: Spec, layer: Layer, wrong: UserError) -> SpecError:
    """The same error with its position in the spec's text."""
    for branch in layer.branches:  # mixers name themselves first
        if re.match(rf"{re.escape(branch.name)}\b", str(wrong)):
            layer = branch
            break
    where = layer.where
    if isinstance(wrong, OptionError) and wrong.option is not None:
        where = layer.option_where.get(wrong.option, where)
    if where is None:
        return SpecError(f"in '{layer}': {wrong}")
    return SpecError(str(wrong), spec.source, where.line, where.column)
