"""An architecture: a spec whose every layer is known, typed and checked. Still no torch."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from plait.core.display import card
from plait.core.errors import UserError
from plait.mixers.options import MixerOptions, MixerSource, OptionError
from plait.mixers.table import options_of
from plait.spec import Header, Layer, Spec, SpecError, load


@dataclass(frozen=True)
class Architecture:
    """What a model is built from and a result is keyed by."""

    header: Header
    layers: tuple[MixerOptions, ...]

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

    @property
    def text(self) -> str:
        return self.spec.text

    @property
    def hash(self) -> str:
        """The identity of the architecture: equal for every spelling of it."""
        return self.spec.hash

    @property
    def mixer_sources(self) -> dict[str, MixerSource]:
        """Of the mixers that are not plait's own, by name."""
        parts = [part for options in self.layers for part in options.parts]
        return {part.name: part.source for part in parts if part.source is not None}

    @property
    def source_hash(self) -> str:
        """Stands for the texts of all of those; empty where there are none."""
        return " ".join(sorted({source.hash for source in self.mixer_sources.values()}))

    def identity(self) -> dict[str, Any]:
        """What a result's key says of the architecture: its text and, for mixers that are not plait's own, the hash of
        theirs, so that nothing made before an edit is taken for what is made after it."""
        sources = {name: source.hash for name, source in sorted(self.mixer_sources.items())}
        return {"spec": self.text, **({"sources": sources} if sources else {})}

    def __str__(self) -> str:
        return self.text

    def _repr_html_(self) -> str:
        counted = Counter(options.to_layer().text for options in self.layers)
        rows = [{"mixer": text, "count": count} for text, count in counted.items()]
        return card(rows, headline=self.text)


def architecture(
    given: str | Spec | Architecture, mixers: Mapping[str, type[MixerOptions]] | None = None
) -> Architecture:
    """Read spec text, a preset's name, a spec file's path, or a parsed spec; check it whole.

    Names in `mixers` mean what they do there: a run folder has its own copies of users' mixers.
    """
    if isinstance(given, Architecture):
        return given
    spec = given if isinstance(given, Spec) else load(given)
    known: dict[Layer, MixerOptions] = {}  # a deep model repeats a few layers
    shared: dict[str, tuple[int, ...]] = {}
    for layer in spec.layers:
        if layer not in known:
            try:
                known[layer] = _checked(spec.header, layer, mixers or {})
                _check_sharing(known[layer].shares(spec.header.d), shared)
            except UserError as wrong:
                raise _pointing(spec, layer, wrong) from None
    return Architecture(spec.header, tuple(known[layer] for layer in spec.layers))


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
    """The same error, with the place in the text it is about."""
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
