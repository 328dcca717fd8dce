"""What a spec is: a header and a flat sequence of layers, frozen and comparable.

Equality is equality of text, so `k=1`, `k=1.0` and `k=true` differ although Python holds the three values equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

from plait.core.errors import UserError
from plait.spec.canonical import format_spec, spec_hash
from plait.spec.errors import SpecError, Where, quoted
from plait.spec.header import Header
from plait.spec.limits import MAX_LAYERS, MAX_OPTIONS, MAX_TEXT
from plait.spec.values import Value, check_value, format_value, parse_name

__all__ = ["RESERVED_KEY", "RESERVED_NAMES", "Layer", "Spec", "Where"]

RESERVED_NAMES = ("par", "mad", "rule", "preset")  # they begin a dialect, so no layer can bear them
RESERVED_KEY = "mixer"  # the key of the layer's name in JSON and YAML

#: Mixer → another word for one of its options → the option; the canonical text has the option's own name.
OPTION_ALIASES: dict[str, dict[str, str]] = {name: {"d_ff": "inner"} for name in ("mlp", "swiglu", "moe")}

Default = TypeVar("Default")


def option_key(layer: str, key: str) -> str:
    """The option that `key` names in this layer, be it by another word."""
    return OPTION_ALIASES.get(layer, {}).get(key, key)


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: a mixer's name and the options given for it, sorted by key. Whether the mixer exists and knows the
    options is for the mixer table to say; `where` and `option_where` let it point at the text."""

    name: str
    options: tuple[tuple[str, Value], ...] = ()
    where: Where | None = field(default=None, repr=False)
    option_where: Mapping[str, Where] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        name = parse_name(self.name)
        if name in RESERVED_NAMES:
            raise UserError(f"'{name}' begins a dialect ({name}:…) and cannot be a layer's name")
        pairs = [(option_key(name, parse_name(key)), check_value(value)) for key, value in self.options]
        options = sorted(pairs, key=lambda pair: pair[0])
        keys = [key for key, _ in options]
        if len(keys) > MAX_OPTIONS:
            raise UserError(f"{len(keys)} options for one layer; at most {MAX_OPTIONS} are allowed")
        for key, following in pairwise(keys):
            if key == following:
                raise UserError(f"option {quoted(key)} is given twice")
        if RESERVED_KEY in keys:
            raise UserError(f"'{RESERVED_KEY}' cannot be an option: it is the layer's name in JSON and YAML")
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "options", tuple(options))
        if name in OPTION_ALIASES and self.option_where:
            where = {option_key(name, key): at for key, at in self.option_where.items()}
            object.__setattr__(self, "option_where", where)

    @classmethod
    def of(cls, name: str, /, **options: Value) -> Layer:
        """`Layer.of("attn", heads=8)` is `attn[heads=8]`."""
        return cls(name, tuple(options.items()))

    def get(self, key: str, default: Default) -> Value | Default:
        """The option's value, or `default` when it was not given."""
        return dict(self.options).get(option_key(self.name, key), default)

    def replace(self, **options: Value) -> Layer:
        """The same layer with these options set."""
        changed = {option_key(self.name, key): value for key, value in options.items()}
        return Layer(self.name, tuple({**dict(self.options), **changed}.items()), self.where, self.option_where)

    @cached_property
    def text(self) -> str:
        """The layer in the spec language: `attn[heads=8,rope]`."""
        if not self.options:
            return self.name
        # A value that is true needs no writing out.
        pairs = [key if value is True else f"{key}={format_value(value)}" for key, value in self.options]
        return f"{self.name}[{','.join(pairs)}]"

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Layer) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)


@dataclass(frozen=True)
class Spec:
    """An architecture. `source` is the text it was read from, for errors that later stages raise."""

    header: Header
    layers: tuple[Layer, ...]
    source: str | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "layers", tuple(self.layers))
        if not self.layers:
            raise SpecError("there are no layers")
        if len(self.layers) > MAX_LAYERS:
            raise SpecError(f"the spec has {len(self.layers):,} layers; at most {MAX_LAYERS:,} are allowed")
        # The canonical text must be readable again. Only a spec whose plain listing is too long needs a closer look.
        written_out = len(self.header.text) + sum(len(layer.text) + 1 for layer in self.layers)
        if written_out > MAX_TEXT // 2 and len(self.text) > MAX_TEXT:
            raise SpecError(f"the canonical text has {len(self.text):,} characters; at most {MAX_TEXT:,} are allowed")

    @cached_property
    def text(self) -> str:
        """The canonical text."""
        return format_spec(self)

    @cached_property
    def hash(self) -> str:
        """The spec's identity: 16 hexadecimal digits of the canonical text's SHA-256."""
        return spec_hash(self)

    def __str__(self) -> str:
        return self.text
