"""Lookup tables over the options of a slot at every width: which options are feasible, and what each one costs.

A layer's validity and cost depend only on its options and the model width, and a space has few of either. So each
distinct layer is checked and costed once, and a million candidates are then table lookups and sums. Sampling draws from
the feasible options only. The sums equal those of `plait.model.cost` exactly.

Letters: N candidates, B layers, S slots, W widths, K options of a slot, Q quantities, R rows of a cost table.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture
from plait.model.cost import model_cost, norm_params
from plait.space.constraints import Constraint, Mask
from plait.space.declaration import Slot
from plait.spec import Header

Genes = NDArray[np.int16]
Ints = NDArray[np.int64]

MAX_PAIRS = 400_000  # (width, option) pairs of a space
#: Columns of a cost table; `norms` is 1 if a norm precedes the layer (its parameters depend on the header).
QUANTITIES = ("params", "active", "flops", "fixed_state", "conv_state", "kv_cache", "norms")
MAX_COUNT = 1 << 52  # of any quantity of one layer, so that sums over layers are exact
CHUNK = 1 << 15  # candidates summed at a time, so that the sums stay in the CPU cache


class Allowed:
    """Which options of each slot are feasible at each width, by the mixers' own checks and the layer constraints."""

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
        if pairs > MAX_PAIRS:
            raise UserError(
                f"{space}: {pairs:,} pairs of a width and an option; at most {MAX_PAIRS:,}: take coarser steps."
            )
        # The key None is the mixers' own checks.
        self._satisfied: dict[Constraint | None, list[Mask]] = {None: [self._fitting(slot) for slot in slots]}
        for constraint in constraints:
            self._satisfied[constraint] = [self._satisfying(slot, constraint, fixed) for slot in slots]
        self._feasible_WK = [
            np.logical_and.reduce([tables[s] for tables in self._satisfied.values()]) for s in range(len(slots))
        ]
        self._cumulative = [
            self._cumulative_weights(slot, table) for slot, table in zip(slots, self._feasible_WK, strict=True)
        ]
        for s, slot in enumerate(slots):
            if not self._feasible_WK[s].any():
                by = ", ".join(str(constraint) for constraint in constraints) or "their own checks"
                raise UserError(f"{space}: none of {len(slot.options)} layers is allowed at any width by {by}.")

    def count(self, slot: int, width: int) -> int:
        return int(self._feasible_WK[slot][width].sum())

    def mask(self, slot: int, width: int) -> Mask:
        """Which options of a slot are feasible at a width."""
        return np.asarray(self._feasible_WK[slot][width])

    def options(self, slot: int, width: int) -> list[int]:
        """Indices of the feasible options of a slot at a width."""
        return [int(k) for k in np.flatnonzero(self._feasible_WK[slot][width])]

    def fits(self, width_N: Ints, options_NBS: Genes) -> Mask:
        """Whether each layer of each candidate is feasible."""
        at_N1 = width_N[:, None]
        return np.stack([table[at_N1, options_NBS[:, :, s]] for s, table in enumerate(self._feasible_WK)], axis=2)

    def holds(self, constraint: Constraint | None, width_N: Ints, options_NBS: Genes, present_NB: Mask) -> Mask:
        """Whether all layers of each candidate satisfy a constraint; None: the mixers' own checks."""
        holds_N = np.ones(len(width_N), dtype=np.bool_)
        for s, table_WK in enumerate(self._satisfied[constraint]):
            if not table_WK.all():
                holds_N &= (table_WK[width_N[:, None], options_NBS[:, :, s]] | ~present_NB).all(axis=1)
        return holds_N

    def number(self, mixer: str, options_NBS: Genes, present_NB: Mask) -> Ints:
        """The number of layers of each candidate with this mixer, or of this kind ("sequence", "channel")."""
        total_N = np.zeros(len(options_NBS), dtype=np.int64)
        for s, slot in enumerate(self.slots):
            matches_K = np.array([o is not None and mixer in (o.name, o.kind) for o in slot.options])
            total_N += (matches_K[options_NBS[:, :, s]] & present_NB).sum(axis=1)
        return total_N

    def sample(self, rng: np.random.Generator, width_N: Ints, layers: int) -> Genes:
        """Random feasible layers for candidates of these widths. At a width where nothing is feasible any option may be
        sampled: such candidates are rejected later."""
        shape = (len(width_N), layers)
        sampled = [
            np.searchsorted(cumulative, width_N[:, None] + rng.random(shape), side="right")
            - len(slot.options) * width_N[:, None]
            for slot, cumulative in zip(self.slots, self._cumulative, strict=True)
        ]
        return np.stack(sampled, axis=2).astype(np.int16)

    def _cumulative_weights(self, slot: Slot, feasible_WK: Mask) -> NDArray[np.float64]:
        """Cumulative sampling weights of all widths in one increasing array: width w covers the interval w to w + 1."""
        weights_WK = slot.weights * feasible_WK
        weights_WK[~feasible_WK.any(axis=1)] = slot.weights
        cumulative_WK = np.cumsum(weights_WK, axis=1)
        cumulative_WK /= cumulative_WK[:, -1:]
        return np.asarray((cumulative_WK + np.arange(len(self.widths))[:, None]).ravel())

    def _fitting(self, slot: Slot) -> Mask:
        return np.array([[layer_fits(option, d) for option in slot.options] for d in self.widths])

    def _satisfying(self, slot: Slot, constraint: Constraint, fixed: Mapping[str, float]) -> Mask:
        table_WK = np.ones((len(self.widths), len(slot.options)), dtype=np.bool_)
        for k, option in enumerate(slot.options):
            values: dict[str, object] = {**fixed, "d": np.array(self.widths), **option_values(option, self.widths)}
            if constraint.names <= values.keys():  # a constraint does not apply to layers without its options
                with np.errstate(divide="ignore", invalid="ignore"):
                    table_WK[:, k] = constraint.check(values)
        return table_WK


def layer_fits(option: MixerOptions | None, d: int) -> bool:
    """Whether a layer passes its mixer's own checks at a width; no layer (None) fits everywhere."""
    if option is not None:
        try:
            option.check(d)
        except UserError:
            return False
    return True


def option_names(option: MixerOptions | None) -> set[str]:
    """The names of a layer's numbers in constraints: `inner`, `mlp.inner`."""
    return set(option_values(option, ())) if option else set()


def option_values(option: MixerOptions | None, widths: tuple[int, ...]) -> dict[str, object]:
    """Those names with their values at each width; an inner width left to the mixer is resolved."""
    named: dict[str, object] = {}
    for f in dataclasses.fields(option) if option else ():
        value = getattr(option, f.name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            continue
        assert option is not None
        resolved = [option.inner_width(d) if f.name == "inner" else None for d in widths]
        values = np.array([value if width is None else width for width in resolved])
        named[f.name] = named[f"{option.name.replace('-', '_')}.{f.name}"] = values
    return named


class SlotCosts:
    """Costs of one slot's options at every width, each computed on first use. The last row is zero: no layer."""

    def __init__(
        self, options: tuple[MixerOptions | None, ...], widths: tuple[int, ...], seq: int, memory: int
    ) -> None:
        self.options, self.widths, self.seq, self.memory = options, widths, seq, memory
        self.absent = len(widths) * len(options)
        self.rows_RQ = np.zeros((self.absent + 1, len(QUANTITIES)), dtype=np.int64)
        self.shared: dict[str, Ints] = {}  # by parameter name: its size in each row that shares it with other layers
        self.known_R = np.zeros(self.absent + 1, dtype=np.bool_)
        self.known_R[self.absent] = True
        self.complete = False

    def rows_of(self, width_N: Ints, option_N: Genes, present_N: Mask) -> Ints:
        """The table row of each candidate's layer. All rows returned are filled in."""
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
            if max(counts) > MAX_COUNT:
                raise UserError(f"{options.to_layer()} at width {self.widths[width]} is larger than can be counted.")
            self.rows_RQ[row] = counts
            for name, count in cost.shared.items():
                self.shared.setdefault(name, np.zeros(self.absent + 1, dtype=np.int64))[row] = count
        self.known_R[row] = True


def decoder_sums(
    slots: list[SlotCosts], width_N: Ints, options_NBS: Genes, present_NB: Mask, repeats_N: Ints | None
) -> dict[str, Ints]:
    """Sums over the layers, by quantity. `repeats_N`: how often the one layer given is repeated."""
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
                    # A shared parameter is held once, however many layers use it.
                    held_N = shared.setdefault(name, np.zeros(total, dtype=np.int64))
                    np.maximum(held_N[part], count_R[at_N], out=held_N[part])
    if repeats_N is not None:
        sums_NQ *= repeats_N[:, None]
    sums: dict[str, Ints] = {name: sums_NQ[:, q] for q, name in enumerate(QUANTITIES)}
    all_shared = sum(shared.values(), start=np.zeros(total, dtype=np.int64))
    return {**sums, "params": sums["params"] + all_shared, "active": sums["active"] + all_shared}


def around_layers(space: str, headers: Sequence[Header | None], seq: int, memory: int) -> NDArray[np.int64]:
    """For every header: parameters of one pre-layer norm, of the final norm and of the embeddings; FLOPs outside the
    layers. Zeros for a header that is not allowed."""
    rows = [_embedding_and_head_cost(header, seq, memory) if header else (0,) * 4 for header in headers]
    if max(max(row) for row in rows) > MAX_COUNT:
        raise UserError(f"{space} has models that are larger than can be counted.")
    return np.array(rows, dtype=np.int64)


def _embedding_and_head_cost(header: Header, seq: int, memory: int) -> tuple[int, int, int, int]:
    cost = model_cost(Architecture(header, ()), seq=seq, memory=memory)
    return norm_params(header), cost.decoder_params, cost.embedding_params, cost.input_flops + cost.output_flops
