"""A search space: candidates are rows of small integers (genes) that are sampled, mutated, costed and checked in bulk.

    gene 0        index of the depth
    next          index of the value of each header key that varies, the width d first
    the rest      for every layer up to the maximum depth and every slot in it, the index of the slot's option; genes of
                  a single layer if all layers are alike

In canonical form empty layers come last and unused genes are zero, so two rows are equal if and only if they describe
the same network.

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
from plait.mixers.options import NOT_SHARED, MixerOptions
from plait.model.architecture import Architecture
from plait.space import slot_tables
from plait.space.coding import genes_of
from plait.space.constraints import Constraint, Mask, as_constraint, check_names
from plait.space.declaration import NONE, Declaration, Headers, Slot, check_slots, depends
from plait.space.links import Links
from plait.space.objective_table import OBJECTIVES
from plait.space.slot_tables import Allowed, SlotCosts, layer_fits, option_names
from plait.spec import Header, Spec

Genes = NDArray[np.int16]
Columns = dict[str, NDArray[Any]]

#: Exact quantities of every candidate: parameters and FLOPs are counts, states and weights are bytes.
COLUMNS = (
    *("decoder_params", "total_params", "active_params", "flops"),
    *("fixed_state", "conv_state", "kv_cache", "state", "weights"),
)
IN_BYTES = ("fixed_state", "conv_state", "kv_cache", "state", "weights")
FITS = "every layer fits its width"
LINKED = "every layer fits the layers it reads from or shares with"
SOMETHING = "at least one layer"
SEES = "at least one sequence mixer"
SEQUENCE = "sequence"  # count(sequence): the number of sequence mixers


@dataclass(frozen=True)
class Parts:
    """Candidates as indices into the space's `headers.all`, `widths` and slots' `options`.

    `options_NBS` lists every layer, even if all are alike; -1 is a layer beyond the candidate's depth.
    """

    header_N: NDArray[np.int64]
    width_N: NDArray[np.int64]
    options_NBS: Genes


class Space:
    """A search space built from a `Declaration`. A user's own space is a subclass with `declaration` set."""

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
        check_slots(self.name, self.slots, {header.kind for header in self.headers.all if header})
        self.layer_constraints = tuple(
            constraint for constraint in self.constraints if self._is_about_layers(constraint)
        )
        self.candidate_constraints = tuple(
            constraint for constraint in self.constraints if constraint not in self.layer_constraints
        )
        for constraint in self.candidate_constraints:
            check_names(constraint, {*COLUMNS, *self._numbers, *OBJECTIVES, *(f"{name}_high" for name in OBJECTIVES)})
        self.allowed = Allowed(self.name, self.slots, self.widths, self.layer_constraints, self.headers.fixed)
        options = [option for slot in self.slots for option in slot.options if option is not None]
        # None for most spaces: no layer depends on another.
        self.links = Links(self.name, self.slots, self.widths, self.allowed) if any(map(depends, options)) else None
        self._tables: dict[tuple[int, int], tuple[list[SlotCosts], NDArray[np.int64]]] = {}

    @property
    def mixer_sources(self) -> dict[str, MixerSource]:
        """Source files of the users' own mixers in the space, by name: its specs cannot be parsed without them."""
        layers = (option for slot in self.slots for option in slot.options if option is not None)
        options = (part for layer in layers for part in layer.parts)
        return {option.name: option.source for option in options if option.source is not None}

    def one_of_each(self) -> list[tuple[MixerOptions, int]]:
        """A layer of every mixer, at the first width that it fits; of language models alone."""
        if any(header and header.kind != "lm" for header in self.headers.all):
            return []
        layers = (option for slot in self.slots for option in slot.options if option is not None)
        fitting = [(layer, d) for layer in layers for d in self.widths if layer_fits(layer, d)]
        return list({layer.name: (layer, d) for layer, d in reversed(fitting)}.values())

    def with_vocabulary(self, tokens: int) -> Space:
        """The same space for a text of so many different tokens; encoders have one more, the mask."""
        vocab = tokens + any(header is not None and header.kind == "encoder" for header in self.headers.all)
        if all(header is None or header.vocab == vocab for header in self.headers.all):
            return self
        return type(self)(self.declared.with_vocabulary(vocab))

    def identity(self) -> dict[str, object]:
        """The part of a result's key that the declaration lacks: hashes of the users' mixers."""
        sources = {name: source.hash for name, source in sorted(self.mixer_sources.items())}
        return {"sources": sources} if sources else {}

    def with_constraints(self, constraints: Sequence[str | Constraint]) -> Space:
        """The same space with additional constraints."""
        return type(self)(dataclasses.replace(self.declared, constraints=(*self.declared.constraints, *constraints)))

    # ---- genes

    @property
    def deepest(self) -> int:
        """The number of layers that have genes of their own."""
        return 1 if self.alike else self.depths[-1]

    @property
    def genes(self) -> int:
        return 1 + len(self.choices) + self.deepest * len(self.slots)

    def sample(self, rng: np.random.Generator, n: int) -> Genes:
        """Random candidates: depth and header uniformly, then every layer among those feasible at the width."""
        genes_NG = self._sample_header(rng, n)
        return self._with_links_repaired(rng, self._with_layers(genes_NG, self._sample_layers(rng, genes_NG)))

    def mutate(self, rng: np.random.Generator, genes_NG: Genes, p: float) -> Genes:
        """Mutants: each gene is resampled with probability p."""
        mutant_NG = self._with_unused_layers_sampled(rng, genes_NG)
        new_NG = self._sample_header(rng, len(genes_NG))
        resampled_NG = rng.random(genes_NG.shape) < p
        header = slice(0, 1 + len(self.choices))
        mutant_NG[:, header] = np.where(resampled_NG[:, header], new_NG[:, header], mutant_NG[:, header])
        # Sampled for the mutant's width, not the parent's: otherwise nearly every wider mutant would be infeasible.
        new_NG = self._with_layers(new_NG, self._sample_layers(rng, mutant_NG))
        return self._with_links_repaired(rng, np.where(resampled_NG, new_NG, mutant_NG))

    def crossover(self, rng: np.random.Generator, one_NG: Genes, other_NG: Genes) -> Genes:
        """Uniform crossover: each gene comes from either parent with equal probability."""
        from_one_NG = rng.random(one_NG.shape) < 0.5
        one_NG, other_NG = (self._with_unused_layers_sampled(rng, parent_NG) for parent_NG in (one_NG, other_NG))
        return self._with_links_repaired(rng, np.where(from_one_NG, one_NG, other_NG))

    def repair(self, rng: np.random.Generator, genes_NG: Genes) -> Genes:
        """Resample every layer that its width or a layer constraint makes infeasible."""
        options_NBS = self._layers(genes_NG)
        fits_NBS = self.allowed.fits(self._width(genes_NG), options_NBS)
        feasible_NBS = np.where(fits_NBS, options_NBS, self._sample_layers(rng, genes_NG))
        return self._with_links_repaired(rng, self._with_layers(genes_NG, feasible_NBS))

    def canonical(self, genes_NG: Genes) -> Genes:
        """The canonical form: the same network always has the same row."""
        genes_NG = np.array(genes_NG, dtype=np.int16)
        options_NBS = self._layers(genes_NG)
        if self._has_empty_layers and not self.alike:
            none = self.slots[0].index[None]
            empty_NB = (options_NBS[:, :, 0] == none) | ~self._present(genes_NG)
            order_NB = np.argsort(empty_NB, axis=1, kind="stable")
            depth_N = (~empty_NB).sum(axis=1)
            options_NBS = np.take_along_axis(options_NBS, order_NB[:, :, None], axis=1)
            options_NBS[np.arange(self.deepest) >= depth_N[:, None]] = none
            genes_NG[:, 0] = np.searchsorted(self.depths, depth_N)
        present_NB = self._present(genes_NG)
        if self.links and self.links.share_names:
            options_NBS = self.links.share_names.canonical(options_NBS, present_NB)
        options_NBS[~present_NB] = 0
        return self._with_layers(genes_NG, options_NBS)

    # ---- to specs and back

    def spec(self, row_G: Genes) -> str:
        """The canonical text of one candidate."""
        options_BS = row_G[1 + len(self.choices) :].reshape(self.deepest, len(self.slots))
        depth = self.depths[row_G[0]]
        chosen = [
            (slot, options_BS[0 if self.alike else b, s]) for b in range(depth) for s, slot in enumerate(self.slots)
        ]
        layers = [(option, slot.layers[k]) for slot, k in chosen if (option := slot.options[k]) is not None]
        if not layers:
            raise UserError(f"{self.name}: a candidate whose layers are all '{NONE}' is not an architecture.")
        header, options = self.header(row_G), tuple(option for option, _ in layers)
        if any(option.share != NOT_SHARED for option in options):
            return Architecture(header, options).text  # renames the shared weights canonically
        return Spec(header, tuple(layer for _, layer in layers if layer is not None)).text

    def from_spec(self, text: str) -> Genes:
        """The genes of an architecture; raises a `UserError` that says why if it is outside the space."""
        return np.asarray(self.canonical(genes_of(self, text)[None])[0])

    def of_layers(self, options_NBS: NDArray[Any]) -> Genes:
        """Candidates of the maximum depth with the first width and header, given their slots' options."""
        genes_NG = np.zeros((len(options_NBS), 1 + len(self.choices)), dtype=np.int16)
        genes_NG[:, 0] = len(self.depths) - 1
        return self.canonical(self._with_layers(genes_NG, np.asarray(options_NBS, dtype=np.int16)))

    def header(self, row_G: Genes) -> Header:
        header = self.headers.all[int(self.headers.codes(self._header_genes(row_G[None]))[0])]
        if header is None:
            raise UserError(f"{self.name}: the header keys of this candidate do not go together.")
        return header

    @cached_property
    def count(self) -> int:
        """The number of candidates that satisfy the layer constraints; an upper bound if layers can share weights in
        too many ways to count."""
        return sum(self._count(width) * self.headers.of_width(d) for width, d in enumerate(self.widths))

    def _count(self, width: int) -> int:
        stacks = self.links.count(width, self.deepest) if self.links else None
        if stacks is None:
            layers = math.prod(self.allowed.count(slot, width) for slot in range(len(self.slots)))
            stacks = [(layers - self._has_empty_layers) ** n for n in range(1, self.deepest + 1)]
        if self.alike:
            return len(self.depths) * stacks[0]
        return sum(stacks) if self._has_empty_layers else sum(stacks[depth - 1] for depth in self.depths)

    @property
    def size(self) -> float:
        """The logarithm of `count` to base 10."""
        return math.log10(self.count) if self.count else -math.inf

    # ---- costs and constraints, in bulk

    def columns(
        self, genes_NG: Genes, *, seq: int | None = None, memory: int | None = None, number_bytes: int = 4
    ) -> Columns:
        """The exact quantities of every candidate, equal to those of `plait.model.cost` for its spec."""
        slots, around_H4 = self._costs(self.seq if seq is None else seq, self.memory if memory is None else memory)
        depth_N = np.asarray(self.depths)[genes_NG[:, 0]]
        sums = slot_tables.decoder_sums(
            slots,
            self._width(genes_NG),
            self._layers(genes_NG),
            self._present(genes_NG),
            depth_N if self.alike else None,
        )
        norm_N, final_norm_N, embedding_N, flops_N = around_H4[self.headers.codes(self._header_genes(genes_NG))].T
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
        """The candidates as indices of their header, width and layers, for lookup tables over those."""
        present_NB = np.arange(self.depths[-1]) < np.asarray(self.depths)[genes_NG[:, 0]][:, None]
        options_NBS = np.where(present_NB[:, :, None], self._layers(genes_NG), np.int16(-1))
        return Parts(self.headers.codes(self._header_genes(genes_NG)), self._width(genes_NG), options_NBS)

    def passed(self, genes_NG: Genes, columns: Mapping[str, NDArray[Any]]) -> dict[str, Mask]:
        """Which candidates satisfy each constraint that can be evaluated from the columns, validity first."""
        width_N, options_NBS, present_NB = self._width(genes_NG), self._layers(genes_NG), self._present(genes_NG)
        legal_N = self.headers.legal[self.headers.codes(self._header_genes(genes_NG))]
        passed = {FITS: legal_N & self.allowed.holds(None, width_N, options_NBS, present_NB)}
        if self.links:
            passed[LINKED] = self.links.hold(width_N, options_NBS, present_NB)
        if self._has_empty_layers:
            passed[SOMETHING] = (present_NB & (options_NBS[:, :, 0] != self.slots[0].index[None])).any(axis=1)
        if self._needs_sequence_mixer:
            passed[SEES] = self.allowed.number(SEQUENCE, options_NBS, present_NB) > 0
        for constraint in self.layer_constraints:
            passed[constraint.text] = self.allowed.holds(constraint, width_N, options_NBS, present_NB)
        for constraint in self.candidate_constraints:
            values = self._values(constraint, genes_NG, columns)
            if values is not None:
                passed[constraint.text] = np.broadcast_to(constraint.check(values), len(genes_NG))
        return passed

    def excess(self, genes_NG: Genes, columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
        """The factor by which each candidate violates its worst constraint: 1 if it satisfies all, infinite if it is
        not a valid model."""
        worst_N = np.ones(len(genes_NG))
        by_text = {constraint.text: constraint for constraint in self.candidate_constraints}
        for text, holds_N in self.passed(genes_NG, columns).items():
            values = self._values(by_text[text], genes_NG, columns) if text in by_text else None
            factor_N = np.where(holds_N, 1.0, np.inf) if values is None else by_text[text].excess(values)
            worst_N = np.maximum(worst_N, factor_N)
        return worst_N

    def valid(self, genes_NG: Genes, columns: Mapping[str, NDArray[Any]] | None = None) -> Mask:
        """Which candidates satisfy every constraint that can be evaluated from the columns."""
        known = self.columns(genes_NG) if columns is None else columns
        return np.asarray(np.logical_and.reduce(list(self.passed(genes_NG, known).values())))

    def needs(self) -> set[str]:
        """Quantities in the constraints that are not exact columns, such as predicted latency."""
        named = set().union(*(constraint.names for constraint in self.candidate_constraints))
        return {name for name in named - {*COLUMNS, *self._numbers} if not name.startswith("count(")}

    @property
    def _has_empty_layers(self) -> bool:
        """Whether the only slot of a layer may be `none`, so that the whole layer may be empty."""
        return None in self.slots[0].index

    @property
    def _needs_sequence_mixer(self) -> bool:
        """Whether candidates without a sequence mixer, in which no token sees another, are to be rejected: if the space
        has both kinds of candidates and no constraint is about their number."""
        kinds = [{option.kind if option else "" for option in slot.options} for slot in self.slots]
        constrained = any(f"count({SEQUENCE})" in constraint.names for constraint in self.candidate_constraints)
        return SEQUENCE in set().union(*kinds) and {SEQUENCE} not in kinds and not constrained

    @property
    def _numbers(self) -> set[str]:
        """Names in constraints whose values are read from the genes or the header."""
        return {"layers", *self.choices, *self.headers.fixed}

    def _is_about_layers(self, constraint: Constraint) -> bool:
        of_options = {name for slot in self.slots for option in slot.options for name in option_names(option)}
        own = {name for name in constraint.names if name in of_options and name not in (*COLUMNS, *self._numbers)}
        if not own:
            return False
        if beyond := constraint.names - own - {"d", *self.headers.fixed}:
            raise UserError(
                f"{self.name}: constraint '{constraint}' is about a layer ({', '.join(sorted(own))}) and cannot use "
                f"{', '.join(sorted(beyond))}; besides options, a layer constraint takes d and fixed header keys."
            )
        return True

    def _width(self, genes_NG: Genes) -> NDArray[np.int64]:
        return genes_NG[:, 1].astype(np.int64)

    def _layers(self, genes_NG: Genes) -> Genes:
        return genes_NG[:, 1 + len(self.choices) :].reshape(len(genes_NG), self.deepest, len(self.slots))

    def _with_layers(self, genes_NG: Genes, options_NBS: Genes) -> Genes:
        header_NG = genes_NG[:, : 1 + len(self.choices)]
        layers_NG = options_NBS.reshape(len(genes_NG), self.deepest * len(self.slots))
        return np.concatenate([header_NG, layers_NG], axis=1, dtype=np.int16)

    def _present(self, genes_NG: Genes) -> Mask:
        if self.alike:
            return np.ones((len(genes_NG), 1), dtype=np.bool_)
        return np.asarray(np.arange(self.deepest) < np.asarray(self.depths)[genes_NG[:, 0]][:, None])

    def _sample_header(self, rng: np.random.Generator, n: int) -> Genes:
        """Depth and header keys uniformly; the genes of the layers are zero."""
        genes_NG = np.zeros((n, self.genes), dtype=np.int16)
        for at, values in enumerate((self.depths, *self.choices.values())):
            genes_NG[:, at] = rng.integers(len(values), size=n)
        return genes_NG

    def _sample_layers(self, rng: np.random.Generator, genes_NG: Genes) -> Genes:
        return self.allowed.sample(rng, self._width(genes_NG), self.deepest)

    def _with_links_repaired(self, rng: np.random.Generator, genes_NG: Genes) -> Genes:
        """The canonical form, after resampling layers that do not fit an earlier layer they read from or share with."""
        if self.links:
            layers_NBS = self.links.repaired(rng, self._width(genes_NG), self._layers(genes_NG))
            genes_NG = self._with_layers(genes_NG, layers_NBS)
        return self.canonical(genes_NG)

    def _with_unused_layers_sampled(self, rng: np.random.Generator, genes_NG: Genes) -> Genes:
        """With random layers beyond each candidate's depth, so that a child deeper than its parents has genes there."""
        present_NB1 = self._present(genes_NG)[:, :, None]
        layers_NBS = np.where(present_NB1, self._layers(genes_NG), self._sample_layers(rng, genes_NG))
        return self._with_layers(genes_NG, layers_NBS)

    def _header_genes(self, genes_NG: Genes) -> Genes:
        return genes_NG[:, 1 : 1 + len(self.choices)]

    def _costs(self, seq: int, memory: int) -> tuple[list[SlotCosts], NDArray[np.int64]]:
        if (seq, memory) not in self._tables:
            slots = [SlotCosts(slot.options, self.widths, seq, memory) for slot in self.slots]
            self._tables[seq, memory] = slots, slot_tables.around_layers(self.name, self.headers.all, seq, memory)
        return self._tables[seq, memory]

    def _values(
        self, constraint: Constraint, genes_NG: Genes, columns: Mapping[str, NDArray[Any]]
    ) -> dict[str, NDArray[Any]] | None:
        """The values that a candidate constraint needs; None if one of them has not been computed yet."""
        values: dict[str, Any] = {}
        for name in constraint.names:
            if name in columns:
                values[name] = columns[name]
            elif name == "layers":
                values[name] = np.asarray(self.depths)[genes_NG[:, 0]]
            elif name in self.choices:
                values[name] = self.headers.values(name, self._header_genes(genes_NG))
            elif name in self.headers.fixed:
                values[name] = self.headers.fixed[name]
            elif name.startswith("count("):
                repeats = np.asarray(self.depths)[genes_NG[:, 0]] if self.alike else 1
                counted = self.allowed.number(name[6:-1], self._layers(genes_NG), self._present(genes_NG))
                values[name] = counted * repeats
            else:
                return None
        return values
