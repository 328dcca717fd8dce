"""Exact costs of many candidates: each distinct layer is costed once, and candidates add up rows of a table.

A layer's cost depends on its options and on the width alone, and a space has few of both, so a million candidates need
only some hundred calls of the mixers' own `cost`. What the rest of the header decides, the norms in front of the layers
included, is kept apart, once for every header. The sums are those of `plait.model.cost`, number for number.

Letters: N candidates, B layers, Q quantities, W widths, K options of a slot, R rows of a table.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture
from plait.model.cost import model_cost, norm_params
from plait.space.allowed import layer_fits
from plait.spec import Header

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: What a row of the table holds; `norms` is 1 where a norm, whose parameters come later, stands in front of the layer.
QUANTITIES = ("params", "active", "flops", "fixed_state", "conv_state", "kv_cache", "norms")
MOST = 1 << 52  # of a quantity of one layer, so that sums over layers are exact
CHUNK = 1 << 15  # candidates at once: the sums then stay in the processor's cache


class SlotCosts:
    """Costs of one slot's options at every width, computed when first met. The last row is zero: no layer."""

    def __init__(
        self, options: tuple[MixerOptions | None, ...], widths: tuple[int, ...], seq: int, memory: int
    ) -> None:
        self.options, self.widths, self.seq, self.memory = options, widths, seq, memory
        self.absent = len(widths) * len(options)
        self.rows_RQ = np.zeros((self.absent + 1, len(QUANTITIES)), dtype=np.int64)
        self.shared: dict[str, Ints] = {}  # by parameter: how many numbers a row shares with other layers
        self.known_R = np.zeros(self.absent + 1, dtype=np.bool_)
        self.known_R[self.absent] = True
        self.complete = False

    def rows_of(self, width_N: Ints, option_N: NDArray[np.int16], present_N: Mask) -> Ints:
        """Where in the table each candidate's layer is; every row asked for is filled afterwards."""
        at_N = np.where(present_N, width_N * len(self.options) + option_N, self.absent)
        if not self.complete:
            for row in np.unique(at_N[~self.known_R[at_N]]).tolist():
                self._fill(row)
            self.complete = bool(self.known_R.all())
        return at_N

    def _fill(self, row: int) -> None:
        width, option = divmod(row, len(self.options))
        options = self.options[option]
        # A layer that does not fit its width has no cost; such candidates are never valid.
        if options is not None and layer_fits(options, self.widths[width]):
            cost = options.cost(self.widths[width], self.seq, self.memory)
            counts = (
                cost.total_params, cost.active_params, cost.total_flops,
                cost.fixed_state, cost.conv_state, cost.kv_cache, options.prenorm,
            )  # fmt: skip
            if max(counts) > MOST:
                raise UserError(f"{options.to_layer()} at width {self.widths[width]} is larger than can be counted.")
            self.rows_RQ[row] = counts
            for name, count in cost.shared.items():
                self.shared.setdefault(name, np.zeros(self.absent + 1, dtype=np.int64))[row] = count
        self.known_R[row] = True


def decoder_sums(
    slots: list[SlotCosts], width_N: Ints, options_NBS: NDArray[np.int16], present_NB: Mask, repeats_N: Ints | None
) -> dict[str, Ints]:
    """Sums over the layers, by quantity. `repeats_N`: the one layer given stands that many times."""
    total = len(width_N)
    sums_NQ = np.zeros((total, len(QUANTITIES)), dtype=np.int64)
    shared: dict[str, Ints] = {}
    for start in range(0, total, CHUNK):
        part = slice(start, start + CHUNK)
        for b in range(options_NBS.shape[1]):
            for s, slot in enumerate(slots):
                at_N = slot.rows_of(width_N[part], options_NBS[part, b, s], present_NB[part, b])
                sums_NQ[part] += slot.rows_RQ.take(at_N, axis=0)
                for name, count_R in slot.shared.items():
                    # Held once, however many layers use it.
                    held_N = shared.setdefault(name, np.zeros(total, dtype=np.int64))
                    np.maximum(held_N[part], count_R[at_N], out=held_N[part])
    if repeats_N is not None:
        sums_NQ *= repeats_N[:, None]
    found: dict[str, Ints] = {name: sums_NQ[:, q] for q, name in enumerate(QUANTITIES)}
    together = sum(shared.values(), start=np.zeros(total, dtype=np.int64))
    return {**found, "params": found["params"] + together, "active": found["active"] + together}


def outside(header: Header, seq: int, memory: int) -> tuple[int, int, int, int]:
    """Parameters of one norm in front of a layer, of the final norm, of the embeddings; FLOPs outside the layers."""
    cost = model_cost(Architecture(header, ()), seq=seq, memory=memory)
    around = cost.input_flops + cost.output_flops
    return norm_params(header), cost.decoder_params, cost.embedding_params, around
