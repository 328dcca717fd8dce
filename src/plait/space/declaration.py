"""What a space is, said in a few lines: depths, header, what may stand in each layer, and the constraints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError, did_you_mean
from plait.mixers.options import MixerOptions
from plait.space.choices import layers_of, numbers_of, values_of
from plait.space.constraints import Constraint
from plait.spec import Layer, Spec, parse
from plait.spec.values import Value, format_value

#: Keys of stored documents → fields: what a store keeps under is part of every search's key and stays.
_FIELDS = {"rules": "constraints"}


@dataclass(frozen=True)
class Slot:
    """One place in a layer: the layers of the spec language that may stand there; None is nothing."""

    options: tuple[MixerOptions | None, ...]

    @classmethod
    def of(cls, patterns: Sequence[str]) -> Slot:
        found = tuple(dict.fromkeys(option for pattern in patterns for option in layers_of(pattern)))
        if not found:
            raise UserError("a slot needs at least one layer to choose.")
        return cls(found)

    @cached_property
    def weights(self) -> NDArray[np.float64]:
        """Every mixer is drawn equally often, however many settings it has."""
        names = [option.name if option else None for option in self.options]
        share = np.array([1 / names.count(name) for name in names])
        return np.asarray(share / share.sum())

    @cached_property
    def layers(self) -> tuple[Layer | None, ...]:
        """The options as the spec language writes them."""
        return tuple(option.to_layer() if option else None for option in self.options)

    @cached_property
    def places(self) -> dict[MixerOptions | None, int]:
        return {option: place for place, option in enumerate(self.options)}


@dataclass(frozen=True)
class Declaration:
    """A space before anything is computed.

    layers   depths, as in `4..12`; a layer is one or more slots
    d        widths
    slots    patterns for every place in a layer, in order: [["attn[heads=2|4|8]", "gla"], ["swiglu", "none"]]
    header   the spec header's fixed keys
    vary     other header keys that are chosen: {"div": "1|2|4"}
    alike    all layers of a candidate are the same
    constraints  text in the language of `plait.space.constraints`, or `Constraint`s
    seq      tokens at which FLOPs and growing state are counted, and
    memory   older tokens before them (segment memory)
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
        found = tuple(sorted(numbers_of(self.layers)))
        if found[0] < 1:
            raise UserError(f"{self.name}: layers={self.layers}: a model has at least one layer.")
        return found

    def header_choices(self) -> dict[str, tuple[Value, ...]]:
        return {"d": numbers_of(self.d), **{key: values_of(text) for key, text in self.vary.items()}}

    def narrowed(self, chosen: Mapping[str, str]) -> Declaration:
        """Fewer depths (`layers`), widths (`d`) or values of header keys that vary: {"d": "256", "layers": "6..12"}."""
        open_to = {"layers": self.layers, "d": self.d, **self.vary}
        for key, text in chosen.items():
            if key not in open_to:
                near = did_you_mean(key, open_to)
                raise UserError(f"{self.name} does not vary '{key}'.{near} What varies: {', '.join(open_to)}.")
            allowed = values_of(open_to[key])
            if beyond := [value for value in values_of(text) if value not in allowed]:
                raise UserError(f"{self.name} has no {key}={format_value(beyond[0])}; allowed is {open_to[key]}.")
        vary = {key: chosen.get(key, text) for key, text in self.vary.items()}
        return replace(self, layers=chosen.get("layers", self.layers), d=chosen.get("d", self.d), vary=vary)

    def with_vocabulary(self, vocab: int) -> Declaration:
        """The same layers over another vocabulary."""
        header = parse(f"{self.header} | identity").header.with_vocabulary(vocab)
        text, _, _ = Spec(header, (Layer("identity"),)).text.partition(" | ")
        # Without bands there is nothing for an adaptive softmax's keys to vary.
        settled = ("vocab",) if header.cutoffs else ("vocab", "div", "cutoffs")
        vary = {key: values for key, values in self.vary.items() if key not in settled}
        return replace(self, header=text, vary=vary)

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON: what decides which candidates there are."""
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
        """Back from `as_dict`, whose keys are those of stored searches: `rules` are the constraints."""
        known = {f.name for f in fields(cls)}
        named = {_FIELDS.get(key, key): value for key, value in document.items()}
        return cls(**{key: value for key, value in named.items() if key in known})
