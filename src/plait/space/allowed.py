"""Which options may stand in a layer of which width: the mixers' own checks, and the constraints about layers.

All of it is decided once, in small tables; a million candidates are then looked up, and new layers are drawn only from
what is allowed.

Letters: N candidates, B layers, S slots, W widths, K options of a slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.mixers.options import MixerOptions
from plait.space.coding import option_values
from plait.space.constraints import Constraint, Mask
from plait.space.declaration import Slot

Genes = NDArray[np.int16]
MOST_PAIRS = 400_000  # of a width and an option


class Allowed:
    def __init__(
        self,
        space: str,
        slots: tuple[Slot, ...],
        widths: tuple[int, ...],
        constraints: tuple[Constraint, ...],
        fixed: Mapping[str, float],
    ) -> None:
        self.slots, self.widths = slots, widths
        pairs = len(widths) * sum(len(slot.options) for slot in slots)
        if pairs > MOST_PAIRS:
            raise UserError(
                f"{space}: {pairs:,} pairs of a width and an option; at most {MOST_PAIRS:,}: take coarser steps."
            )
        # None stands for the mixers' own checks.
        self._holds: dict[Constraint | None, list[Mask]] = {None: [self._fitting(slot) for slot in slots]}
        for constraint in constraints:
            self._holds[constraint] = [self._satisfying(slot, constraint, fixed) for slot in slots]
        self._all_WK = [
            np.logical_and.reduce([tables[s] for tables in self._holds.values()]) for s in range(len(slots))
        ]
        self._rising = [self._cumulated(slot, table) for slot, table in zip(slots, self._all_WK, strict=True)]
        for s, slot in enumerate(slots):
            if not self._all_WK[s].any():
                said = ", ".join(str(constraint) for constraint in constraints) or "their own checks"
                raise UserError(f"{space}: none of {len(slot.options)} layers is allowed at any width by {said}.")

    def count(self, slot: int, width: int) -> int:
        return int(self._all_WK[slot][width].sum())

    def mask(self, slot: int, width: int) -> Mask:
        """Which of its options may stand in a slot."""
        return np.asarray(self._all_WK[slot][width])

    def options(self, slot: int, width: int) -> list[int]:
        """The places of those."""
        return [int(place) for place in np.flatnonzero(self._all_WK[slot][width])]

    def fits(self, width_N: NDArray[np.int64], options_NBS: Genes) -> Mask:
        """Of every layer, whether it is allowed."""
        at_N1 = width_N[:, None]
        return np.stack([table[at_N1, options_NBS[:, :, s]] for s, table in enumerate(self._all_WK)], axis=2)

    def holds(
        self, constraint: Constraint | None, width_N: NDArray[np.int64], options_NBS: Genes, present_NB: Mask
    ) -> Mask:
        """Whether all layers of a candidate satisfy a constraint (None: fit the width)."""
        found_N = np.ones(len(width_N), dtype=np.bool_)
        for s, table_WK in enumerate(self._holds[constraint]):
            if not table_WK.all():
                found_N &= (table_WK[width_N[:, None], options_NBS[:, :, s]] | ~present_NB).all(axis=1)
        return found_N

    def number(self, mixer: str, options_NBS: Genes, present_NB: Mask) -> NDArray[np.int64]:
        """How many layers of each candidate are this mixer, or of this kind ("sequence", "channel")."""
        total_N = np.zeros(len(options_NBS), dtype=np.int64)
        for s, slot in enumerate(self.slots):
            is_it_K = np.array([option is not None and mixer in (option.name, option.kind) for option in slot.options])
            total_N += (is_it_K[options_NBS[:, :, s]] & present_NB).sum(axis=1)
        return total_N

    def draw(self, rng: np.random.Generator, width_N: NDArray[np.int64], layers: int) -> Genes:
        """Layers for candidates of these widths. A width that allows nothing gets something: it is refused later."""
        shape = (len(width_N), layers)
        drawn = [
            np.searchsorted(rising, width_N[:, None] + rng.random(shape), side="right")
            - len(slot.options) * width_N[:, None]
            for slot, rising in zip(self.slots, self._rising, strict=True)
        ]
        return np.stack(drawn, axis=2).astype(np.int16)

    def _cumulated(self, slot: Slot, allowed_WK: Mask) -> NDArray[np.float64]:
        """The slot's weights summed up from 0 to 1 for the first width, on to 2 for the second, and so forth."""
        weights_WK = slot.weights * allowed_WK
        weights_WK[~allowed_WK.any(axis=1)] = slot.weights
        rising_WK = np.cumsum(weights_WK, axis=1)
        rising_WK /= rising_WK[:, -1:]
        return np.asarray((rising_WK + np.arange(len(self.widths))[:, None]).ravel())

    def _fitting(self, slot: Slot) -> Mask:
        return np.array([[layer_fits(option, d) for option in slot.options] for d in self.widths])

    def _satisfying(self, slot: Slot, constraint: Constraint, fixed: Mapping[str, float]) -> Mask:
        table_WK = np.ones((len(self.widths), len(slot.options)), dtype=np.bool_)
        for k, option in enumerate(slot.options):
            values: dict[str, Any] = {**fixed, "d": np.array(self.widths), **option_values(option, self.widths)}
            if constraint.names <= values.keys():  # a constraint says nothing about layers that lack what it names
                with np.errstate(divide="ignore", invalid="ignore"):
                    table_WK[:, k] = constraint.check(values)
        return table_WK


def layer_fits(option: MixerOptions | None, d: int) -> bool:
    """By the mixer's own checks; nothing fits everywhere."""
    if option is not None:
        try:
            option.check(d)
        except UserError:
            return False
    return True
