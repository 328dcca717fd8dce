"""A space of architectures: candidates as rows of small integers, drawn, changed, costed and checked by the million.

    gene 0        which of the depths
    next          which value of each header key that is chosen, the width d first
    the rest      for every layer up to the deepest and every slot in it, which of the slot's options; one layer's
                  genes only where all layers are alike

Genes of layers that a candidate does not have are zero in canonical form, and layers that are nothing stand last, so
equal networks are equal rows.

Letters: N candidates, G genes, B layers, S slots of a layer, W widths, K options of a slot.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.core.user_files import MixerSource
from plait.space import coding, costs
from plait.space.allowed import Allowed
from plait.space.constraints import Constraint, Mask, as_constraint, check_names
from plait.space.declaration import Declaration, Headers, Slot
from plait.space.links import Links
from plait.space.objective_table import OBJECTIVES
from plait.spec import Header

Genes = NDArray[np.int16]
Columns = dict[str, NDArray[Any]]

#: Exact for every candidate: parameters and FLOPs in numbers, states and weights in bytes.
COLUMNS = (
    *("decoder_params", "total_params", "active_params", "flops"),
    *("fixed_state", "conv_state", "kv_cache", "state", "weights"),
)
IN_BYTES = ("fixed_state", "conv_state", "kv_cache", "state", "weights")
FITS = "every layer fits its width"
LINKED = "every layer fits those it reads of or shares with"
SOMETHING = "at least one layer"
SEES = "at least one sequence mixer"
SEQUENCE = "sequence"  # count(sequence): sequence mixers of any kind


@dataclass(frozen=True)
class Parts:
    """Candidates by their parts: places in the space's `headers.all`, its `widths` and its slots' `options`.

    `options_NBS` has every layer, also where all are alike; -1 where a candidate has none.
    """

    header_N: NDArray[np.int64]
    width_N: NDArray[np.int64]
    options_NBS: Genes


class Space:
    """Made from a `Declaration`. A subclass in a file of yours sets `declaration` and is a space, too."""

    declaration: ClassVar[Declaration]

    def __init__(self, declaration: Declaration | None = None) -> None:
        self.declared = d = declaration or self.declaration
        self.name, self.seq, self.memory, self.alike = d.name, d.seq, d.memory, d.alike
        self.depths = d.depths()
        self.headers = Headers(d)
        self.choices = self.headers.choices
        self.widths = tuple(value for value in self.choices["d"] if isinstance(value, int))
        self.slots = tuple(Slot.of(patterns) for patterns in d.slots)
        self.constraints = tuple(as_constraint(constraint) for constraint in d.constraints)
        coding.check(self.name, self.slots, {header.kind for header in self.headers.all if header})
        self.layer_constraints = tuple(
            constraint for constraint in self.constraints if self._is_about_layers(constraint)
        )
        self.candidate_constraints = tuple(
            constraint for constraint in self.constraints if constraint not in self.layer_constraints
        )
        for constraint in self.candidate_constraints:
            check_names(constraint, {*COLUMNS, *self._numbers, *OBJECTIVES, *(f"{name}_high" for name in OBJECTIVES)})
        self.allowed = Allowed(self.name, self.slots, self.widths, self.layer_constraints, self.headers.fixed)
        self.links = Links(self.name, self.slots, self.widths, self.allowed)
        self._tables: dict[tuple[int, int], tuple[list[costs.SlotCosts], NDArray[np.int64]]] = {}

    @property
    def mixer_sources(self) -> dict[str, MixerSource]:
        """Of the users' own mixers among the options, by name: without them its specs cannot be read."""
        layers = (option for slot in self.slots for option in slot.options if option is not None)
        options = (part for layer in layers for part in layer.parts)
        return {option.name: option.source for option in options if option.source is not None}

    def identity(self) -> dict[str, Any]:
        """What a result's key says beside the declaration: the hashes of the users' mixers."""
        sources = {name: source.hash for name, source in sorted(self.mixer_sources.items())}
        return {"sources": sources} if sources else {}

    def with_constraints(self, constraints: Sequence[str | Constraint]) -> Space:
        """The same space under further constraints."""
        return type(self)(dataclasses.replace(self.declared, constraints=(*self.declared.constraints, *constraints)))

    # ---- genes

    @property
    def deepest(self) -> int:
        """Layers that have genes of their own."""
        return 1 if self.alike else self.depths[-1]

    @property
    def genes(self) -> int:
        return 1 + len(self.choices) + self.deepest * len(self.slots)

    def sample(self, rng: np.random.Generator, n: int) -> Genes:
        """Depth and header uniformly, then every layer among what the width and the constraints about layers allow."""
        genes_NG = self._draw_whole(rng, n)
        return self._linked(rng, self._with_layers(genes_NG, self._draw_layers(rng, genes_NG)))

    def mutate(self, rng: np.random.Generator, genes_NG: Genes, p: float) -> Genes:
        """Each gene drawn again with probability p."""
        n = len(genes_NG)
        changed_NG = self._filled(rng, genes_NG)
        fresh_NG = self._draw_whole(rng, n)
        anew_NG = rng.random(genes_NG.shape) < p
        whole = slice(0, 1 + len(self.choices))
        changed_NG[:, whole] = np.where(anew_NG[:, whole], fresh_NG[:, whole], changed_NG[:, whole])
        # Drawn for the width that the mutant has, or nearly every wider mutant would be refused.
        fresh_NG = self._with_layers(fresh_NG, self._draw_layers(rng, changed_NG))
        return self._linked(rng, np.where(anew_NG, fresh_NG, changed_NG))

    def crossover(self, rng: np.random.Generator, one_NG: Genes, other_NG: Genes) -> Genes:
        """Each gene from the one parent or the other."""
        from_one_NG = rng.random(one_NG.shape) < 0.5
        return self._linked(rng, np.where(from_one_NG, self._filled(rng, one_NG), self._filled(rng, other_NG)))

    def repair(self, rng: np.random.Generator, genes_NG: Genes) -> Genes:
        """Whatever the width or a constraint about layers does not allow, drawn again."""
        options_NBS = self._layers(genes_NG)
        fits_NBS = self.allowed.fits(self._width(genes_NG), options_NBS)
        fitting_NBS = np.where(fits_NBS, options_NBS, self._draw_layers(rng, genes_NG))
        return self._linked(rng, self._with_layers(genes_NG, fitting_NBS))

    def canonical(self, genes_NG: Genes) -> Genes:
        """One row for one network."""
        genes_NG = np.array(genes_NG, dtype=np.int16)
        options_NBS = self._layers(genes_NG)
        if self._may_vanish and not self.alike:
            nothing = self.slots[0].places[None]
            gone_NB = (options_NBS[:, :, 0] == nothing) | ~self._present(genes_NG)
            last_NB = np.argsort(gone_NB, axis=1, kind="stable")
            left_N = (~gone_NB).sum(axis=1)
            options_NBS = np.take_along_axis(options_NBS, last_NB[:, :, None], axis=1)
            options_NBS[np.arange(self.deepest) >= left_N[:, None]] = nothing
            genes_NG[:, 0] = np.searchsorted(self.depths, left_N)
        present_NB = self._present(genes_NG)
        if self.links.share_names:
            options_NBS = self.links.share_names.canonical(options_NBS, present_NB)
        options_NBS[~present_NB] = 0
        return self._with_layers(genes_NG, options_NBS)

    # ---- meaning

    def spec(self, row_G: Genes) -> str:
        """The canonical text of one candidate."""
        return coding.text_of(self, row_G)

    def from_spec(self, text: str) -> Genes:
        """The genes of an architecture, or a `UserError` that says why it does not lie in the space."""
        return np.asarray(self.canonical(coding.genes_of(self, text)[None])[0])

    def of_layers(self, options_NBS: NDArray[Any]) -> Genes:
        """Candidates of the greatest depth and the first width and header, by their slots' options."""
        genes_NG = np.zeros((len(options_NBS), 1 + len(self.choices)), dtype=np.int16)
        genes_NG[:, 0] = len(self.depths) - 1
        return self.canonical(self._with_layers(genes_NG, np.asarray(options_NBS, dtype=np.int16)))

    def header(self, row_G: Genes) -> Header:
        found = self.headers.all[int(self.headers.codes(self._chosen(row_G[None]))[0])]
        if found is None:
            raise UserError(f"{self.name}: the header keys of this candidate do not go together.")
        return found

    @cached_property
    def count(self) -> int:
        """How many candidates there are, constraints about layers included; an upper bound where layers share weights
        in too many ways to count."""
        return sum(self._count(width) * self.headers.of_width(d) for width, d in enumerate(self.widths))

    def _count(self, width: int) -> int:
        stacks = self.links.count(width, self.deepest) if self.links or self.links.share_names else None
        if stacks is None:
            layers = math.prod(self.allowed.count(slot, width) for slot in range(len(self.slots))) - self._may_vanish
            stacks = [layers**n for n in range(1, self.deepest + 1)]
        if self.alike:
            return len(self.depths) * stacks[0]
        return sum(stacks) if self._may_vanish else sum(stacks[depth - 1] for depth in self.depths)

    @property
    def size(self) -> float:
        """The logarithm of `count` to base 10."""
        return math.log10(self.count) if self.count else -math.inf

    # ---- many at once

    def columns(
        self, genes_NG: Genes, *, seq: int | None = None, memory: int | None = None, number_bytes: int = 4
    ) -> Columns:
        """The exact quantities of every candidate, as `plait.model.cost` has them for its spec."""
        slots, outside_H4 = self._costs(self.seq if seq is None else seq, self.memory if memory is None else memory)
        depth_N = np.asarray(self.depths)[genes_NG[:, 0]]
        sums = costs.decoder_sums(
            slots,
            self._width(genes_NG),
            self._layers(genes_NG),
            self._present(genes_NG),
            depth_N if self.alike else None,
        )
        norm_N, final_norm_N, embedding_N, flops_N = outside_H4[self.headers.codes(self._chosen(genes_NG))].T
        decoder_N = sums["params"] + sums["norms"] * norm_N + final_norm_N
        total_N = decoder_N + embedding_N
        state_N = sums["fixed_state"] + sums["conv_state"] + sums["kv_cache"]
        return {
            "decoder_params": decoder_N,
            "total_params": total_N,
            "active_params": total_N - (sums["params"] - sums["active"]),
            "flops": sums["flops"] + flops_N,
            "fixed_state": number_bytes * sums["fixed_state"],
            "conv_state": number_bytes * sums["conv_state"],
            "kv_cache": number_bytes * sums["kv_cache"],
            "state": number_bytes * state_N,
            "weights": number_bytes * total_N,
        }

    def parts(self, genes_NG: Genes) -> Parts:
        """What the candidates are made of, layer by layer: for tables that have an entry for every part."""
        present_NB = np.arange(self.depths[-1]) < np.asarray(self.depths)[genes_NG[:, 0]][:, None]
        options_NBS = np.where(present_NB[:, :, None], self._layers(genes_NG), np.int16(-1))
        return Parts(self.headers.codes(self._chosen(genes_NG)), self._width(genes_NG), options_NBS)

    def passed(self, genes_NG: Genes, columns: Mapping[str, NDArray[Any]]) -> dict[str, Mask]:
        """For every constraint that the columns suffice for, which candidates satisfy it; widths that do not fit
        first."""
        width_N, options_NBS, present_NB = self._width(genes_NG), self._layers(genes_NG), self._present(genes_NG)
        legal_N = self.headers.legal[self.headers.codes(self._chosen(genes_NG))]
        found = {FITS: legal_N & self.allowed.holds(None, width_N, options_NBS, present_NB)}
        if self.links:
            found[LINKED] = self.links.hold(width_N, options_NBS, present_NB)
        if self._may_vanish:
            found[SOMETHING] = (present_NB & (options_NBS[:, :, 0] != self.slots[0].places[None])).any(axis=1)
        if self._may_see_nothing:
            found[SEES] = self.allowed.number(SEQUENCE, options_NBS, present_NB) > 0
        for constraint in self.layer_constraints:
            found[constraint.text] = self.allowed.holds(constraint, width_N, options_NBS, present_NB)
        for constraint in self.candidate_constraints:
            values = self._values(constraint, genes_NG, columns)
            if values is not None:
                found[constraint.text] = np.broadcast_to(constraint.check(values), len(genes_NG))
        return found

    def excess(self, genes_NG: Genes, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """How far each candidate is beyond the constraint that it misses most: 1 where it satisfies all, infinite where
        it is no model at all."""
        passed = self.passed(genes_NG, columns)
        found_N = np.ones(len(genes_NG))
        about = {constraint.text: constraint for constraint in self.candidate_constraints}
        for text, holds_N in passed.items():
            values = self._values(about[text], genes_NG, columns) if text in about else None
            missed_N = np.where(holds_N, 1.0, np.inf) if values is None else about[text].excess(values)
            found_N = np.maximum(found_N, missed_N)
        return found_N

    def valid(self, genes_NG: Genes, columns: Mapping[str, NDArray[Any]] | None = None) -> Mask:
        """Which candidates satisfy every constraint that the columns suffice for."""
        given = self.columns(genes_NG) if columns is None else columns
        return np.asarray(np.logical_and.reduce(list(self.passed(genes_NG, given).values())))

    def needs(self) -> set[str]:
        """What the constraints ask for beyond the exact columns: predicted latency, for one."""
        named = set().union(*(constraint.names for constraint in self.candidate_constraints))
        return {name for name in named - {*COLUMNS, *self._numbers} if not name.startswith("count(")}

    # ---- inside

    @property
    def _may_vanish(self) -> bool:
        """A layer of one slot that may hold nothing may itself be nothing."""
        return None in self.slots[0].places

    @property
    def _may_see_nothing(self) -> bool:
        """Without a sequence mixer no token sees another: such candidates are refused where the space has some, unless
        a constraint speaks of their number."""
        kinds = [{option.kind if option else "" for option in slot.options} for slot in self.slots]
        asked = any(f"count({SEQUENCE})" in constraint.names for constraint in self.candidate_constraints)
        return SEQUENCE in set().union(*kinds) and {SEQUENCE} not in kinds and not asked

    @property
    def _numbers(self) -> set[str]:
        """What a constraint may name that the genes say directly."""
        return {"layers", *self.choices, *self.headers.fixed}

    def _is_about_layers(self, constraint: Constraint) -> bool:
        of_options = {name for slot in self.slots for option in slot.options for name in coding.option_names(option)}
        own = {name for name in constraint.names if name in of_options and name not in (*COLUMNS, *self._numbers)}
        if not own:
            return False
        if beyond := constraint.names - own - {"d", *self.headers.fixed}:
            raise UserError(
                f"{self.name}: constraint '{constraint}' is about a layer ({', '.join(sorted(own))}) and cannot "
                f"speak of "
                f"{', '.join(sorted(beyond))}; beside options a layer's constraint takes d and fixed header keys."
            )
        return True

    def _width(self, genes_NG: Genes) -> NDArray[np.int64]:
        return genes_NG[:, 1].astype(np.int64)

    def _layers(self, genes_NG: Genes) -> Genes:
        return genes_NG[:, 1 + len(self.choices) :].reshape(len(genes_NG), self.deepest, len(self.slots))

    def _with_layers(self, genes_NG: Genes, options_NBS: Genes) -> Genes:
        whole_NG = genes_NG[:, : 1 + len(self.choices)]
        layers_NG = options_NBS.reshape(len(genes_NG), self.deepest * len(self.slots))
        return np.concatenate([whole_NG, layers_NG], axis=1, dtype=np.int16)

    def _present(self, genes_NG: Genes) -> Mask:
        if self.alike:
            return np.ones((len(genes_NG), 1), dtype=np.bool_)
        return np.asarray(np.arange(self.deepest) < np.asarray(self.depths)[genes_NG[:, 0]][:, None])

    def _draw_whole(self, rng: np.random.Generator, n: int) -> Genes:
        genes_NG = np.zeros((n, self.genes), dtype=np.int16)
        for at, values in enumerate((self.depths, *self.choices.values())):
            genes_NG[:, at] = rng.integers(len(values), size=n)
        return genes_NG

    def _draw_layers(self, rng: np.random.Generator, genes_NG: Genes) -> Genes:
        return self.allowed.draw(rng, self._width(genes_NG), self.deepest)

    def _linked(self, rng: np.random.Generator, genes_NG: Genes) -> Genes:
        """In canonical form, with every layer drawn again that lacks one before it to read of, or to share with."""
        if self.links:
            layers_NBS = self.links.repaired(rng, self._width(genes_NG), self._layers(genes_NG))
            genes_NG = self._with_layers(genes_NG, layers_NBS)
        return self.canonical(genes_NG)

    def _filled(self, rng: np.random.Generator, genes_NG: Genes) -> Genes:
        """Layers that are not there get genes, so that a child that is deeper than its parents has some to take."""
        present_NB1 = self._present(genes_NG)[:, :, None]
        return self._with_layers(
            genes_NG, np.where(present_NB1, self._layers(genes_NG), self._draw_layers(rng, genes_NG))
        )

    def _chosen(self, genes_NG: Genes) -> Genes:
        """The genes of the header's keys."""
        return genes_NG[:, 1 : 1 + len(self.choices)]

    def _costs(self, seq: int, memory: int) -> tuple[list[costs.SlotCosts], NDArray[np.int64]]:
        if (seq, memory) not in self._tables:
            slots = [costs.SlotCosts(slot.options, self.widths, seq, memory) for slot in self.slots]
            outside_H4 = [costs.outside(header, seq, memory) if header else (0,) * 4 for header in self.headers.all]
            if max(max(row) for row in outside_H4) > costs.MOST:
                raise UserError(f"{self.name} has models that are larger than can be counted.")
            self._tables[seq, memory] = slots, np.array(outside_H4, dtype=np.int64)
        return self._tables[seq, memory]

    def _values(
        self, constraint: Constraint, genes_NG: Genes, columns: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]] | None:
        """What a constraint about candidates names; None where something has not been computed yet."""
        values: dict[str, Any] = {}
        for name in constraint.names:
            if name in columns:
                values[name] = columns[name]
            elif name == "layers":
                values[name] = np.asarray(self.depths)[genes_NG[:, 0]]
            elif name in self.choices:
                values[name] = self.headers.values(name, self._chosen(genes_NG))
            elif name in self.headers.fixed:
                values[name] = self.headers.fixed[name]
            elif name.startswith("count("):
                repeats = np.asarray(self.depths)[genes_NG[:, 0]] if self.alike else 1
                counted = self.allowed.number(name[6:-1], self._layers(genes_NG), self._present(genes_NG))
                values[name] = counted * repeats
            else:
                return None
        return values
