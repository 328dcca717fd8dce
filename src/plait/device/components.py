"""What the models of a profile may be made of: headers, widths, and for every slot of a layer its options."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from plait.core.errors import UserError
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture
from plait.spec import Header

DEEPEST_CHECK = 8  # layers of a whole model: a deeper one takes longer and says no more


class Spacelike(Protocol):
    """What a search space tells: slots with `options`, depths, and in `headers.all` every header or None."""

    slots: Any
    depths: tuple[int, ...]
    headers: Any


@dataclass(frozen=True)
class Components:
    """A space, reduced to its parts. `None` among a slot's options: the slot may stay empty."""

    header: Header
    widths: tuple[int, ...]
    slots: tuple[tuple[MixerOptions | None, ...], ...]
    depths: tuple[int, int]

    @classmethod
    def of(cls, space: Spacelike) -> list[Components]:
        """One set of components for every header that differs in more than the width."""
        widths: dict[Header, list[int]] = {}
        for header in space.headers.all:
            if header is not None:
                widths.setdefault(header.replace({"d": Header().d, "d_embed": 0}), []).append(header.d)
        slots = tuple(tuple(slot.options) for slot in space.slots)
        return [
            cls(header, tuple(dict.fromkeys(ds)), slots, (space.depths[0], space.depths[-1]))
            for header, ds in widths.items()
        ]

    def headers(self) -> list[Header]:
        return [self.header.replace({"d": d}) for d in self.widths]

    def layers(self) -> Iterator[tuple[int, MixerOptions]]:
        """Every layer at every width that it fits."""
        for d in self.widths:
            for options in dict.fromkeys(one for slot in self.slots for one in slot if one is not None):
                if _fits(options, d):
                    yield d, options

    def model(self, rng: np.random.Generator) -> Architecture:
        """Some architecture made of the components."""
        d = int(rng.choice(self.widths))
        depth = int(rng.integers(self.depths[0], max(self.depths[0], min(self.depths[1], DEEPEST_CHECK)) + 1))
        fitting = [[one for one in slot if one is None or _fits(one, d)] for slot in self.slots]
        chosen = [slot[int(rng.integers(len(slot)))] for _ in range(depth) for slot in fitting if slot]
        layers = tuple(options for options in chosen if options is not None)
        return Architecture(self.header.replace({"d": d}), layers) if layers else self.model(rng)


def _fits(options: MixerOptions, d: int) -> bool:
    try:
        options.check(d)
    except UserError:
        return False
    return True
