"""The header of a spec: everything about a model that is not a layer. One documented field a key.

What a spec is: a header and a flat sequence of layers, frozen and comparable.

Equality is equality of text, so `k=1`, `k=1.0` and `k=true` differ although Python holds the three values equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from itertools import pairwise
from typing import Any, TypeVar

from plait.core.errors import UserError, did_you_mean
from plait.spec.canonical import format_spec, spec_hash
from plait.spec.errors import MAX_LAYERS, MAX_OPTIONS, MAX_TEXT, HeaderError, SpecError, Where, quoted
from plait.spec.values import Value, check_value, format_value, parse_name

_ALWAYS_WRITTEN = ("d", "vocab")


def _key(default: Value, about: str, choices: tuple[str, ...] = ()) -> Any:
    return field(default=default, metadata={"about": about, "choices": choices})


@dataclass(frozen=True)
class Header:
    """The header's keys with their defaults; `metadata` of each field holds its explanation and allowed values."""

    d: int = _key(512, "width of the residual stream")
    vocab: int = _key(50257, "number of tokens in the vocabulary")
    kind: str = _key(
        "lm",
        "causal language model, bidirectional encoder, or sequence auto-encoder",
        ("lm", "encoder", "autoencoder"),
    )
    pos: str = _key("none", "positions added to the embeddings", ("none", "learned", "sinusoidal"))
    max_len: int = _key(0, "longest sequence with a learned position; 0 = no bound")
    tie: bool = _key(False, "the output matrix is the embedding matrix")
    embed: str = _key(
        "plain", "one table, or one a frequency band with an adaptive softmax to match", ("plain", "adaptive")
    )
    cutoffs: tuple[int, ...] = _key((), "adaptive: where a band of token ids ends and the next begins")
    div: int = _key(1, "adaptive: each band is this much narrower than the one before")
    d_embed: int = _key(0, "width of the embeddings before their projection to d; 0 = d")
    head_bias: bool = _key(False, "the output layer has a bias")
    norm: str = _key("rms", "the norm before every layer and at the end", ("rms", "layer"))
    eps: float = _key(1e-6, "added to the variance inside a norm")
    final_norm: bool = _key(True, "a norm between the last layer and the output")
    embed_norm: bool = _key(False, "a norm between the embeddings and the first layer")
    segments: int = _key(0, "number of token types (BERT's segment embeddings); 0 = none")
    embed_scale: bool = _key(False, "embeddings are multiplied by the square root of d")
    init: float = _key(0.02, "standard deviation of the initial weights")
    depth_scale: bool = _key(False, "initial residual outputs shrink with the square root of the depth")

    def __post_init__(self) -> None:
        for spec in fields(self):
            object.__setattr__(self, spec.name, coerce(spec.name, getattr(self, spec.name)))
        self.check()

    @classmethod
    def from_values(cls, values: Mapping[str, object]) -> Header:
        """A header from its keys, each checked by name and type."""
        return cls().replace(values)

    def with_vocabulary(self, vocab: int) -> Header:
        """For another vocabulary; bands of an adaptive softmax that a smaller one does not reach are left out."""
        changes: dict[str, Value] = {"vocab": vocab}
        if self.cutoffs:
            kept = tuple(cut for cut in self.cutoffs if cut < vocab)
            changes |= {"cutoffs": kept} if kept else {"cutoffs": (), "embed": "plain", "div": 1}
        return self.replace(changes)

    def replace(self, values: Mapping[str, object]) -> Header:
        """This header with the given keys set."""
        given = {key: coerce(key, value) for key, value in values.items()}
        current: dict[str, Any] = {spec.name: getattr(self, spec.name) for spec in fields(self)}
        return Header(**{**current, **given})

    def check(self) -> None:
        """Every rule that one key alone cannot state; the message names the key to change."""
        for key, least in (("d", 1), ("vocab", 2), ("max_len", 0), ("div", 1), ("d_embed", 0), ("segments", 0)):
            _require(getattr(self, key) >= least, f"{key}={getattr(self, key)}: must be at least {least}", key)
        _require(self.eps > 0, f"eps={self.eps}: must be greater than 0", "eps")
        _require(self.init >= 0, f"init={self.init}: must not be negative", "init")
        _require(self.pos != "learned" or self.max_len > 0, "pos=learned needs max_len=… above 0", "max_len", "pos")
        self._check_embedding()

    def _check_embedding(self) -> None:
        adaptive = self.embed == "adaptive"
        _require(adaptive or not self.cutoffs, "cutoffs=… needs embed=adaptive", "cutoffs")
        _require(adaptive or self.div == 1, f"div={self.div} needs embed=adaptive", "div")
        # One band alone is a plain table with projections of its own, and only div > 1 gives it those.
        one_band = adaptive and not self.cutoffs and self.div == 1
        _require(not one_band, "embed=adaptive needs cutoffs=…, such as 2000/10000", "embed")
        bounds = (0, *self.cutoffs, self.vocab)
        _require(
            all(low < high for low, high in pairwise(bounds)),
            f"cutoffs must grow and stay between 0 and vocab={self.vocab}",
            "cutoffs",
            "vocab",
        )
        width = self.d_embed or self.d
        _require(
            # Checked band by band: div ** bands may be astronomically large.
            adaptive is False or _narrowest(width, self.div, len(self.cutoffs)) >= 1,
            f"div={self.div} leaves no width for the last of {len(self.cutoffs) + 1} bands of {width}",
            "div",
            "cutoffs",
            "embed",
        )
        _require(
            not self.tie or adaptive or width == self.d,
            f"tie=true needs d_embed={self.d} (or 0) when embed=plain, not d_embed={self.d_embed}",
            "d_embed",
            "tie",
        )

    @cached_property
    def text(self) -> str:
        """The canonical text: d, vocab and whatever differs from its default, in the order of the fields."""
        return " ".join(f"{key}={format_value(value)}" for key, value in self.given().items())

    def given(self) -> dict[str, Value]:
        """The keys that the canonical text writes."""
        return {
            spec.name: getattr(self, spec.name)
            for spec in fields(self)
            if spec.name in _ALWAYS_WRITTEN or getattr(self, spec.name) != spec.default
        }


def _narrowest(width: int, div: int, bands: int) -> int:
    for _ in range(bands):
        width //= div
    return width


def _require(holds: bool, message: str, *keys: str) -> None:
    if not holds:
        raise HeaderError(message, *keys)


_FIELDS = {spec.name: spec for spec in fields(Header)}
_TAKES = {bool: "true or false", int: "a whole number", float: "a number", tuple: "whole numbers such as 2000/10000"}


def coerce(key: str, given: object) -> Value:
    """`given` as the type of the key's default; an int may stand for a float or for a list of one."""
    if key not in _FIELDS:
        hint = did_you_mean(key, _FIELDS) or f" Known keys: {', '.join(_FIELDS)}."
        raise HeaderError(f"unknown header key {quoted(key)}.{hint}", key)
    choices: tuple[str, ...] = _FIELDS[key].metadata["choices"]
    kind: type = type(_FIELDS[key].default)
    if kind is tuple and given in ((), []):
        return ()
    try:
        value = check_value(given)
    except UserError as error:
        raise HeaderError(f"{key}: {error}", key) from None
    if kind is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value) + 0.0  # turns -0.0 into 0.0: one zero, one text
    if kind is tuple and isinstance(value, int) and not isinstance(value, bool):
        return (value,)
    if kind is str and value not in choices:
        hint = did_you_mean(value, choices) if isinstance(value, str) else ""
        raise HeaderError(f"{key}={format_value(value)}: must be one of {', '.join(choices)}.{hint}", key)
    if type(value) is not kind:
        raise HeaderError(f"{key}={format_value(value)}: takes {_TAKES[kind]}", key)
    return value


__all__ = ["RESERVED_KEY", "RESERVED_NAMES", "Layer", "Spec", "Where"]

RESERVED_NAMES = ("par", "mad", "rule", "preset")  # they begin a dialect, so no layer can bear them
RESERVED_KEY = "mixer"  # the key of the layer's name in JSON and YAML
BRANCHES_KEY = "parallel"  # and of the mixers of a layer that has several side by side
BAR = "|"

#: Mixer → another word for one of its options → the option; the canonical text has the option's own name.
OPTION_ALIASES: dict[str, dict[str, str]] = {name: {"d_ff": "inner"} for name in ("mlp", "swiglu", "moe")}

Default = TypeVar("Default")


def option_key(layer: str, key: str) -> str:
    """The option that `key` names in this layer, be it by another word."""
    return OPTION_ALIASES.get(layer, {}).get(key, key)


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: a mixer's name and the options given for it, sorted by key. Whether the mixer exists and knows the
    options is for the mixer table to say; `where` and `option_where` let it point at the text.

    `branches` are the mixers of a layer that has several side by side, `(attn | mamba2)`: its name is theirs, joined by
    bars, and `Layer("attn|mamba2")` is the one whose branches have no options.
    """

    name: str
    options: tuple[tuple[str, Value], ...] = ()
    where: Where | None = field(default=None, repr=False)
    option_where: Mapping[str, Where] = field(default_factory=dict, repr=False)
    branches: tuple[Layer, ...] = ()

    def __post_init__(self) -> None:
        if BAR in self.name and not self.branches:
            object.__setattr__(self, "branches", tuple(Layer(name) for name in self.name.split(BAR)))
        if any(branch.branches for branch in self.branches):
            raise UserError("a branch of a parallel layer is one mixer, not a parallel layer again")
        if len(self.branches) > MAX_OPTIONS:
            raise UserError(f"{len(self.branches)} branches in one layer; at most {MAX_OPTIONS} are allowed")
        name = BAR.join(branch.name for branch in self.branches) or parse_name(self.name)
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
        return replace(self, options=tuple({**dict(self.options), **changed}.items()))

    def at(self, where: Where | None) -> Layer:
        """The same layer, all of it standing at one place in the text."""
        return replace(self, where=where, option_where={}, branches=tuple(one.at(where) for one in self.branches))

    @cached_property
    def text(self) -> str:
        """The layer in the spec language: `attn[heads=8,rope]`, `(attn | mamba2)`."""
        mixers = f"({' | '.join(branch.text for branch in self.branches)})" if self.branches else self.name
        if not self.options:
            return mixers
        # A value that is true needs no writing out.
        pairs = [key if value is True else f"{key}={format_value(value)}" for key, value in self.options]
        return f"{mixers}[{','.join(pairs)}]"

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
