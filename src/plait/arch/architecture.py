"""An architecture: a spec whose every layer is known, typed and checked. Still no torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from plait.arch.options import MixerOptions, OptionError
from plait.arch.table import options_of
from plait.core.errors import UserError
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

    def __str__(self) -> str:
        return self.text


def architecture(given: str | Spec | Architecture) -> Architecture:
    """Read spec text, a preset's name, a spec file's path, or a parsed spec; check it whole."""
    if isinstance(given, Architecture):
        return given
    spec = given if isinstance(given, Spec) else load(given)
    known: dict[Layer, MixerOptions] = {}  # a deep model repeats a few layers
    shared: dict[str, tuple[int, ...]] = {}
    for layer in spec.layers:
        if layer not in known:
            try:
                known[layer] = _checked(spec.header, layer)
                _check_sharing(known[layer].shares(spec.header.d), shared)
            except UserError as wrong:
                raise _pointing(spec, layer, wrong) from None
    return Architecture(spec.header, tuple(known[layer] for layer in spec.layers))


def _checked(header: Header, layer: Layer) -> MixerOptions:
    options = options_of(layer)
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
    where = layer.where
    if isinstance(wrong, OptionError) and wrong.option is not None:
        where = layer.option_where.get(wrong.option, where)
    if where is None:
        return SpecError(f"in '{layer}': {wrong}")
    return SpecError(str(wrong), spec.source, where.line, where.column)
