"""The declaration of a search space: depths, header, the options of each layer, and constraints.

Choices are written compactly: `2|4|8`, `128..512 step 64`, `attn[heads=2|4|8,pos=none]`. A layer pattern is a layer of
the spec language in which any option may list several values; `*` means the values that the mixer itself recommends,
and `none` is no layer.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError, did_you_mean
from plait.mixers.options import NOT_SHARED, MixerOptions
from plait.model.architecture import options_of
from plait.space.constraints import Constraint
from plait.spec import Header, Layer, Spec, parse
from plait.spec.errors import HeaderError
from plait.spec.header import Value, coerce, format_value, parse_value
from plait.spec.nodes import option_key

MAX_VALUES = 20_000  # of one gene; genes are 16-bit integers
NONE = "none"

_RANGE = re.compile(r"(-?\d[\d_]*)\s*\.\.\s*(-?\d[\d_]*)(?:\s+step\s+(\d[\d_]*))?")
_LAYER = re.compile(r"([A-Za-z][\w.-]*)\s*(?:\[(.*)\])?", re.DOTALL)


def values_of(text: str) -> tuple[Value, ...]:
    """The values of `2|4|8`, `128..512 step 64` (both ends included) or a combination: `64|128..512 step 128`."""
    values: list[Value] = []
    for part in text.split("|"):
        span = _RANGE.fullmatch(part.strip())
        if span is None:
            if ".." in part:
                raise UserError(f"'{part.strip()}' is not a range: write LOW..HIGH or LOW..HIGH step N.")
            values.append(parse_value(part.strip()))
            continue
        low, high, step = int(span[1]), int(span[2]), int(span[3] or 1)
        if step < 1 or high < low:
            raise UserError(f"'{part.strip()}' is empty: write LOW..HIGH or LOW..HIGH step N with N above 0.")
        if (high - low) // step >= MAX_VALUES:
            raise UserError(
                f"'{part.strip()}' has {(high - low) // step + 1:,} values; at most {MAX_VALUES:,} are allowed."
            )
        values += range(low, high + 1, step)
    if len({format_value(value) for value in values}) < len(values):
        raise UserError(f"'{text}' names a value twice.")
    return tuple(values)


def numbers_of(text: str) -> tuple[int, ...]:
    """The same for integers only."""
    values = values_of(text)
    if wrong := [value for value in values if isinstance(value, bool) or not isinstance(value, int)]:
        raise UserError(f"'{text}' should be whole numbers, such as 4..12 or 2|4|8; found {wrong[0]!r}.")
    return tuple(value for value in values if isinstance(value, int))


def layers_of(pattern: str) -> tuple[MixerOptions | None, ...]:
    """Every layer that matches a pattern, in order; None for `none`."""
    text = pattern.strip()
    if text == NONE:
        return (None,)
    if text.startswith("("):
        return _parallel_of(text)
    read = _LAYER.fullmatch(text)
    if read is None:
        raise UserError(f"'{text}' is not a layer such as attn, attn[heads=2|4|8] or none.")
    name, inside = read[1], read[2] or ""
    bare = options_of(Layer(name))
    choices: dict[str, tuple[Value, ...]] = {}
    for item in filter(None, (part.strip() for part in inside.split(","))):
        key, equals, value = (piece.strip() for piece in item.partition("="))
        key = option_key(name, key)
        choices[key] = _recommended(bare, key) if value == "*" else values_of(value) if equals else (True,)
    layers = (Layer.of(name, **dict(zip(choices, row, strict=True))) for row in itertools.product(*choices.values()))
    distinct = tuple(dict.fromkeys(options_of(layer) for layer in itertools.islice(layers, MAX_VALUES + 1)))
    if len(distinct) > MAX_VALUES:
        raise UserError(f"'{text}' matches more than {MAX_VALUES:,} layers; give fewer values.")
    # `identity` is no layer in the spec language.
    return tuple(None if options.name == "identity" else options for options in distinct)


def _parallel_of(text: str) -> tuple[MixerOptions, ...]:
    """The same for parallel mixers, each branch a pattern: `(attn[heads=2|4] | gla)`."""
    inside, closing, after = text[1:].rpartition(")")
    branches = split_list(inside, "|")
    if not closing or len(branches) < 2:
        raise UserError(f"'{text}' is not a layer such as (attn | mamba2), with at least two mixers.")
    patterns = [[option for option in layers_of(branch) if option is not None] for branch in branches]
    if not all(patterns):
        raise UserError(f"'{text}': a branch is a mixer, not '{NONE}'.")
    if math.prod(map(len, patterns)) > MAX_VALUES:
        raise UserError(f"'{text}' matches more than {MAX_VALUES:,} layers; give fewer values.")
    texts = (" | ".join(str(branch.to_layer()) for branch in row) for row in itertools.product(*patterns))
    return tuple(dict.fromkeys(options_of(parse(f"({row}){after}").layers[0]) for row in texts))


def _recommended(bare: MixerOptions, key: str) -> tuple[Value, ...]:
    recommended = {row["option"]: row["choices"] for row in bare.describe()}
    if not recommended.get(key):
        listing = ", ".join(name for name, values in recommended.items() if values) or "none"
        raise UserError(f"{bare.name} declares no values to try for '{key}'; it does for: {listing}.")
    return tuple(recommended[key])


def split_list(text: str, separator: str = ",") -> list[str]:
    """The items of `[a[b,c], d]` or `a[b,c], d`; separators inside brackets are ignored."""
    text = text.strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1]
    items, depth, start = [], 0, 0
    for at, character in enumerate(text):
        depth += (character in "[(") - (character in ")]")
        if depth < 0:
            raise UserError(f"'{text}' closes a bracket that was not opened.")
        if character == separator and not depth:
            items.append(text[start:at])
            start = at + 1
    if depth:
        raise UserError(f"'{text}' has a bracket that is never closed.")
    return [item for item in (part.strip().strip("\"'") for part in [*items, text[start:]]) if item]


MAX_DEPTH = 1000  # layers; every candidate has genes for all of them
#: Keys of stored records that differ from the field's name. They are part of every search's key, so they stay.
_FIELDS = {"rules": "constraints"}


@dataclass(frozen=True)
class Slot:
    """One position in a layer, and the options to choose from; None is no mixer."""

    options: tuple[MixerOptions | None, ...]

    @classmethod
    def of(cls, patterns: Sequence[str]) -> Slot:
        options = tuple(dict.fromkeys(option for pattern in patterns for option in layers_of(pattern)))
        if not options:
            raise UserError("a slot needs at least one layer to choose.")
        return cls(options)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """Sampling probabilities: every mixer is equally likely, however many settings it has."""
        names = [option.name if option else None for option in self.options]
        share = np.array([1 / names.count(name) for name in names])
        return np.asarray(share / share.sum())

    @cached_property
    def layers(self) -> tuple[Layer | None, ...]:
        """The options as the spec language writes them."""
        return tuple(option.to_layer() if option else None for option in self.options)

    @cached_property
    def index(self) -> dict[MixerOptions | None, int]:
        return {option: k for k, option in enumerate(self.options)}


@dataclass(frozen=True)
class Declaration:
    """A search space as the user writes it.

    layers       depths, as in `4..12`; a layer is one or more slots
    d            widths
    slots        patterns for each position in a layer: [["attn[heads=2|4|8]", "gla"], ["swiglu", "none"]]
    header       fixed keys of the spec header
    vary         other header keys that vary: {"div": "1|2|4"}
    alike        all layers of a candidate are the same
    constraints  text in the language of `plait.space.constraints`, or `Constraint`s
    seq          sequence length at which FLOPs and the KV cache are counted
    memory       tokens of context held before it (XL memory)
    """

    name: str
    layers: str
    d: str
    slots: Sequence[Sequence[str]]
    header: str = ""
    vary: Mapping[str, str] = field(default_factory=dict)
    alike: bool = False
    constraints: Sequence[str | Constraint] = ()
    seq: int = 1024
    memory: int = 0
    about: str = ""

    def depths(self) -> tuple[int, ...]:
        depths = tuple(sorted(numbers_of(self.layers)))
        if depths[0] < 1:
            raise UserError(f"{self.name}: layers={self.layers}: a model has at least one layer.")
        if depths[-1] > MAX_DEPTH:
            raise UserError(f"{self.name}: layers={self.layers}: a space has at most {MAX_DEPTH:,} layers.")
        return depths

    def header_choices(self) -> dict[str, tuple[Value, ...]]:
        return {"d": numbers_of(self.d), **{key: values_of(text) for key, text in self.vary.items()}}

    def narrowed(self, chosen: Mapping[str, str]) -> Declaration:
        """With fewer depths (`layers`), widths (`d`) or values of header keys: {"d": "256", "layers": "6..12"}."""
        varying = {"layers": self.layers, "d": self.d, **self.vary}
        for key, text in chosen.items():
            if key not in varying:
                near = did_you_mean(key, varying)
                raise UserError(f"{self.name} does not vary '{key}'.{near} What varies: {', '.join(varying)}.")
            allowed = values_of(varying[key])
            if beyond := [value for value in values_of(text) if value not in allowed]:
                raise UserError(f"{self.name} has no {key}={format_value(beyond[0])}; allowed is {varying[key]}.")
        vary = {key: chosen.get(key, text) for key, text in self.vary.items()}
        return replace(self, layers=chosen.get("layers", self.layers), d=chosen.get("d", self.d), vary=vary)

    def with_vocabulary(self, vocab: int) -> Declaration:
        """With another vocabulary size."""
        header = parse(f"{self.header} | identity").header.with_vocabulary(vocab)
        text, _, _ = Spec(header, (Layer("identity"),)).text.partition(" | ")
        # Without cutoffs the adaptive softmax has nothing to vary.
        fixed = ("vocab",) if header.cutoffs else ("vocab", "div", "cutoffs")
        vary = {key: values for key, values in self.vary.items() if key not in fixed}
        return replace(self, header=text, vary=vary)

    def as_dict(self) -> dict[str, object]:
        """The declaration as JSON: everything that defines the set of candidates."""
        return {
            "name": self.name,
            "layers": self.layers,
            "d": self.d,
            "slots": [list(patterns) for patterns in self.slots],
            "header": self.header,
            "vary": dict(self.vary),
            "alike": self.alike,
            "seq": self.seq,
            "memory": self.memory,
            "rules": [str(constraint) for constraint in self.constraints],
        }

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Declaration:
        """The inverse of `as_dict`, whose keys are those of stored searches: `rules` are the constraints."""
        known = {f.name for f in fields(cls)}
        named = {_FIELDS.get(key, key): value for key, value in document.items()}
        return cls(**{key: value for key, value in named.items() if key in known})


class Headers:
    """Every header of a space; `choices` has the values of every key that varies, the width d first."""

    def __init__(self, declared: Declaration) -> None:
        if "d" in declared.vary:
            raise UserError(f"{declared.name}: give the widths as d, not among the header keys that vary.")
        self.base = parse(f"{declared.header} | identity").header
        self.choices = {
            key: _coerced(declared.name, key, choices) for key, choices in declared.header_choices().items()
        }
        rows = itertools.product(*self.choices.values())
        self.all = [_header_or_none(self.base, dict(zip(self.choices, row, strict=True))) for row in rows]
        if not any(self.all):
            keys = ", ".join(self.choices)
            raise UserError(f"{declared.name}: no choice of {keys} gives a valid header.")
        self.legal = np.array([header is not None for header in self.all])
        values = {f.name: getattr(self.base, f.name) for f in dataclasses.fields(self.base)}
        #: Header values shared by all candidates.
        self.fixed = {k: v for k, v in values.items() if isinstance(v, int | float) and k not in self.choices}

    @property
    def positions(self) -> float:
        """The longest sequence that every candidate supports: the fewest learned positions among them."""
        return min((h.max_len for h in self.all if h is not None and h.pos == "learned"), default=math.inf)

    @property
    def vocab(self) -> int:
        """Tokens that every candidate knows: the smallest vocabulary among them."""
        return min(h.vocab for h in self.all if h is not None)

    def codes(self, chosen_NH: NDArray[np.int16]) -> NDArray[np.int64]:
        """Indices into `all` of the headers with these values of the varying keys."""
        sizes = [len(values) for values in self.choices.values()]
        return np.asarray(np.ravel_multi_index(tuple(chosen_NH.T), sizes))

    def values(self, key: str, chosen_NH: NDArray[np.int16]) -> NDArray[Any]:
        return np.array(self.choices[key])[chosen_NH[:, list(self.choices).index(key)]]

    def of_width(self, d: int) -> int:
        """The number of valid headers of this width."""
        return sum(header is not None and header.d == d for header in self.all)


def _coerced(space: str, key: str, values: tuple[Value, ...]) -> tuple[Value, ...]:
    """The values converted to the key's type. A value that no header accepts is an error, whatever the others are."""
    try:
        return tuple(coerce(key, value) for value in values)
    except HeaderError as wrong:
        raise UserError(f"{space}: {wrong}") from None


def _header_or_none(base: Header, values: Mapping[str, Any]) -> Header | None:
    try:
        return base.replace(values)
    except HeaderError:
        return None


def check_slots(space: str, slots: tuple[Slot, ...], kinds: set[str]) -> None:
    """Raise a `UserError` for slots that no choice of genes could make valid."""
    if not slots:
        raise UserError(f"{space}: a layer needs at least one slot.")
    if len(slots) > 1 and None in slots[0].index:
        raise UserError(f"{space}: the first of several slots cannot be '{NONE}'; the others can.")
    for option in (option for slot in slots for option in slot.options):
        if option is None or option.kind != "sequence":
            continue
        for kind in kinds:
            if option.bidirectional != (kind == "encoder"):
                remedy = "it needs causal=false" if kind == "encoder" else "only kind=encoder looks ahead"
                raise UserError(f"{space}: {option.name} in models of kind={kind}: {remedy}.")


ALWAYS_AVAILABLE = "embedding"  # what `zamba2` reads needs no earlier layer


def depends(option: MixerOptions) -> bool:
    """Whether a layer reads from an earlier one, or shares weights or a parameter with others."""
    reads = option.reads not in ("", ALWAYS_AVAILABLE)
    return reads or option.share != NOT_SHARED or type(option).shares is not MixerOptions.shares
