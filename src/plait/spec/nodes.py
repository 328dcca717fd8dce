"""Specs: a header and a flat sequence of layers, frozen and comparable, with one canonical text.

The canonical text is the only text for a given spec: grouped or expanded, with options in any order, the same header
and layers give the same text. Its hash identifies the architecture in every result.

Two specs are equal if their texts are, so `k=1`, `k=1.0` and `k=true` differ, although the three values are equal in
Python.

`Repeat` is a group such as `(a b)x3`; `expand` turns a tree of groups into a flat list, `compress` a flat list into a
tree. A tree's size is known before it is expanded, so an absurdly large spec is refused at no cost.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import Generic, TypeVar

from plait.core.errors import UserError
from plait.spec.errors import MAX_LAYERS, MAX_OPTIONS, MAX_TEXT, SpecError, Where, quoted
from plait.spec.header import Header, Value, check_value, format_value, parse_name

DIALECTS = ("par", "mad", "megatron", "rule")  # published notations, parsed by `plait.spec.dialects`
RESERVED_NAMES = (*DIALECTS, "preset")  # these start other constructs and cannot be names of layers
RESERVED_KEY = "mixer"  # the key of a layer's name in JSON and YAML
BRANCHES_KEY = "parallel"  # and of the branches of a parallel layer
BAR = "|"

#: Mixer → alias of one of its options → the option; the canonical text uses the option's own name.
OPTION_ALIASES: dict[str, dict[str, str]] = {name: {"d_ff": "inner"} for name in ("mlp", "swiglu", "moe")}

Default = TypeVar("Default")


def option_key(layer: str, key: str) -> str:
    """The option that `key` names in this layer; `key` may be an alias."""
    return OPTION_ALIASES.get(layer, {}).get(key, key)


@dataclass(frozen=True, eq=False)
class Layer:
    """One layer: a mixer's name and its given options, sorted by key. The mixer table checks whether the mixer and the
    options exist; `where` and `option_where` let it point at the text.

    `branches` are the mixers of a parallel layer, `(attn | mamba2)`: its name joins theirs by bars, and
    `Layer("attn|mamba2")` is the one whose branches have no options.
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
        """The same layer, with all its parts at one position in the text."""
        return replace(self, where=where, option_where={}, branches=tuple(branch.at(where) for branch in self.branches))

    @cached_property
    def text(self) -> str:
        """The layer in the spec language: `attn[heads=8,rope]`, `(attn | mamba2)`."""
        mixers = f"({' | '.join(branch.text for branch in self.branches)})" if self.branches else self.name
        if not self.options:
            return mixers
        # A true value is not written.
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
        # The canonical text must be parseable. Only a spec whose plain listing is too long needs the full check.
        written_out = len(self.header.text) + sum(len(layer.text) + 1 for layer in self.layers)
        if written_out > MAX_TEXT // 2 and len(self.text) > MAX_TEXT:
            raise SpecError(f"the canonical text has {len(self.text):,} characters; at most {MAX_TEXT:,} are allowed")

    @cached_property
    def text(self) -> str:
        """The canonical text: `parse(spec.text) == spec`, and every spelling of the spec has this one text."""
        return f"{self.header.text} | {_format(compress([layer.text for layer in self.layers]))}"

    @cached_property
    def hash(self) -> str:
        """The spec's identity: 16 hexadecimal digits of the canonical text's SHA-256."""
        return hashlib.sha256(self.text.encode()).hexdigest()[:16]

    def __str__(self) -> str:
        return self.text


T = TypeVar("T")

MAX_PERIOD = 256  # longest period that `compress` looks for


@dataclass(frozen=True)
class Repeat(Generic[T]):
    """`items`, `count` times over."""

    items: tuple[T | Repeat[T], ...]
    count: int = 1
    where: Where | None = field(default=None, compare=False, repr=False)
    size: int = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", self.count * total_size(self.items))

    @property
    def nested(self) -> bool:
        """Whether it contains repetitions."""
        return any(isinstance(item, Repeat) for item in self.items)


#: A node of the tree into which a text is parsed.
Node = Layer | Repeat[Layer]


def total_size(nodes: Iterable[T | Repeat[T]]) -> int:
    """How many leaves `expand` would give, without expanding."""
    return sum(node.size if isinstance(node, Repeat) else 1 for node in nodes)


def expand(nodes: Iterable[T | Repeat[T]]) -> list[T]:
    """The leaves in order. The caller has checked `total_size`."""
    flat: list[T] = []
    for node in nodes:
        if isinstance(node, Repeat):
            flat.extend(expand(node.items) * node.count)
        else:
            flat.append(node)
    return flat


def compress(leaves: Sequence[str]) -> list[str | Repeat[str]]:
    """Replace adjacent equal periods by nested `Repeat`s, determined by the leaves alone: at each position the
    repetition that covers most, among those the one with the shortest period."""
    # One character per distinct leaf: slices of a string compare at C speed.
    letters: dict[str, str] = {}
    for leaf in leaves:
        letters.setdefault(leaf, chr(len(letters)))
    return _compress("".join(letters[leaf] for leaf in leaves), list(letters), MAX_PERIOD)


def _compress(code: str, names: list[str], max_period: int) -> list[str | Repeat[str]]:
    nodes: list[str | Repeat[str]] = []
    at = 0
    while at < len(code):
        period, count = _best_repeat(code, at, max_period)
        if count == 1:
            nodes.append(names[ord(code[at])])
            at += 1
            continue
        # `a b c b c b` may be a (b c)x2 b or a b (c b)x2. After a single leaf the second reads better: the lone layers
        # form a block, and the repeated ones are blocks of the same shape (attn mlp (gla mlp)x3).
        if nodes and isinstance(nodes[-1], str):
            rest = _matching(code, at, at + period * count, period)
            nodes += _compress(code[at : at + rest], names, max_period)
            at += rest
        # The unit is not itself periodic, or the shorter period would have been chosen, so the recursion ends.
        nodes.append(Repeat(tuple(_compress(code[at : at + period], names, period // 2)), count))
        at += period * count
    return nodes


def _matching(code: str, at: int, end: int, period: int) -> int:
    """How many leaves from `end` on continue the unit at `at` without completing it."""
    rest = 0
    while rest < period and code[at + rest : at + rest + 1] == code[end + rest : end + rest + 1]:
        rest += 1
    return rest


def _best_repeat(code: str, at: int, max_period: int) -> tuple[int, int]:
    """(period, count) of the repetition starting at `at` that covers most; (1, 1) when nothing repeats there."""
    best_period, best_count = 1, 1
    # A period can only start where the first letter occurs again.
    again = code.find(code[at], at + 1, at + max_period + 1)
    while again != -1:
        period = again - at
        unit = code[at:again]
        end = again
        while code.startswith(unit, end):
            end += period
        count = (end - at) // period
        if count > 1 and count * period > best_count * best_period:
            best_period, best_count = period, count
        again = code.find(code[at], again + 1, at + max_period + 1)
    return best_period, best_count


def _format(nodes: Iterable[str | Repeat[str]]) -> str:
    return " ".join(_format_repeat(node) if isinstance(node, Repeat) else node for node in nodes)


def _format_repeat(node: Repeat[str]) -> str:
    inside = _format(node.items)
    # A single parallel layer, `(attn | mamba2)`, already has parentheses.
    alone = len(node.items) == 1 and inside.startswith("(") and inside.endswith(")") and not node.nested
    return f"{inside}x{node.count}" if alone else f"({inside})x{node.count}"
