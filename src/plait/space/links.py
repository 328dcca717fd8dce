"""Dependencies between the layers of a candidate, checked and repaired in bulk.

Layers depend on each other in three ways:

    reading   `cross-attn` and `gmu` use what the nearest earlier `attn` or `mamba` computed, and must match its size
    sharing   layers of one mixer with the same `share=NAME` have the same weights, so their options must be equal
    shapes    layers that share a single parameter (the biases of `xl-attn`) must agree on its shape

All three are handled as one. A layer may be a *provider*, and it may be a *consumer* of the nearest earlier provider; a
table says which providers satisfy which consumers. A candidate is checked in one pass over its layers, and repaired the
same way: an unsatisfied consumer is resampled.

Letters: N candidates, B layers, S slots, W widths, K options of a slot, C consumers, P providers.

Canonical names for weight sharing: which layers share weights, independent of the names in `share=NAME`.

A name only identifies a group of layers. If a space offers several names for one mixer, rows that differ only in these
names are the same network. `ShareNames` renames the groups in order of first appearance, so that equal networks are
equal rows, and says which groups can occur together, so that networks can be counted.

A *form* is a layer's options without its name. All layers of a group have the same form.

Letters: N candidates, B layers, S slots, P = B S positions, K options of a slot, G names.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.mixers.options import NOT_SHARED, MixerOptions
from plait.space.constraints import Mask
from plait.space.declaration import ALWAYS_AVAILABLE, Slot
from plait.space.slot_tables import Allowed, layer_fits

Genes = NDArray[np.int16]
Ints = NDArray[np.int64]
Thing = TypeVar("Thing", bound=Hashable)
#: The nearest earlier provider of each link; 0: none so far.
Provided = tuple[int, ...]
MAX_STATES = 1000  # of the dynamic programme that counts stacks of layers


@dataclass(frozen=True)
class Link:
    """One kind of dependency. Consumers and providers are numbered from 1; 0 means the layer is neither.

    consumes, provides   per slot, the numbers of every option at every width
    fits_WCP             whether a provider satisfies a consumer; column 0: whether it needs none
    of_name              whether it is about the layers of one `share=NAME`
    """

    consumes: tuple[Ints, ...]
    provides: tuple[Ints, ...]
    fits_WCP: Mask
    of_name: bool = False


class Links:
    """All links of one space."""

    def __init__(self, space: str, slots: tuple[Slot, ...], widths: tuple[int, ...], allowed: Allowed) -> None:
        self.slots, self.widths, self.allowed = slots, widths, allowed
        self.links = (*self._readings(space), *self._agreements())
        self.share_names = ShareNames(slots)
        # For counting, weight sharing is a partition of the layers: the names do not matter.
        self._counted = tuple(link for link in self.links if not link.of_name)
        names = list(dict.fromkeys(option.name if option else "" for slot in slots for option in slot.options))
        self._name_SK = [np.array([names.index(o.name if o else "") for o in slot.options]) for slot in slots]
        first_layer = (self._feasible(0, w, (0,) * len(self.links), self.links) for w in range(len(widths)))
        if self.links and not any(feasible_K.any() for feasible_K in first_layer):
            raise UserError(
                f"{space}: every choice of the first layer reads from an earlier layer; add one that does not."
            )

    def hold(self, width_N: Ints, options_NBS: Genes, present_NB: Mask) -> Mask:
        """Which candidates have no unsatisfied consumer."""
        holds_N = np.ones(len(width_N), dtype=np.bool_)
        provided_NL = np.zeros((len(width_N), len(self.links)), dtype=np.int64)
        for b in range(options_NBS.shape[1] if self.links else 0):
            for s in range(len(self.slots)):
                option_N = options_NBS[:, b, s]
                holds_N &= self._satisfied(s, width_N, option_N, provided_NL) | ~present_NB[:, b]
                after_NL = self._after(s, width_N, option_N, provided_NL)
                provided_NL = np.where(present_NB[:, b, None], after_NL, provided_NL)
        return holds_N

    def repaired(self, rng: np.random.Generator, width_N: Ints, options_NBS: Genes) -> Genes:
        """Resample every unsatisfied consumer: another setting of the same mixer if one is satisfied, else any other
        layer. If no option of its slot is feasible the layer stays, and the candidate is rejected later."""
        if not self.links:
            return options_NBS
        options_NBS = options_NBS.copy()
        provided_NL = np.zeros((len(width_N), len(self.links)), dtype=np.int64)
        for b in range(options_NBS.shape[1]):
            for s in range(len(self.slots)):
                option_N = options_NBS[:, b, s]  # a view
                wrong = np.flatnonzero(~self._satisfied(s, width_N, option_N, provided_NL))
                option_N[wrong] = self._resampled(rng, s, width_N[wrong], option_N[wrong], provided_NL[wrong])
                provided_NL = self._after(s, width_N, option_N, provided_NL)
        return options_NBS

    def count(self, width: int, deepest: int) -> list[int] | None:
        """The number of distinct stacks of 1, 2, … `deepest` non-empty layers at a width; None if there is nothing to
        count or it would take too long."""
        if not self.links and not self.share_names:
            return None
        # Stacks by the providers at their end and by which of their layers share weights.
        stacks: Counter[tuple[Provided, Groups]] = Counter({((0,) * len(self._counted), ()): 1})
        counts = []
        for _ in range(deepest):
            for s, slot in enumerate(self.slots):
                nonempty_K = np.array([option is not None or s > 0 for option in slot.options])
                form_K = self.share_names.form_SK[s]
                # Options that provide the same and share the same way are counted together. Of the names a shared layer
                # could have, only the first is counted.
                _, first_K = np.unique(form_K, return_index=True)
                counted_K = nonempty_K & ((form_K == 0) | np.isin(np.arange(len(form_K)), first_K))
                kind_KL = np.stack([form_K, *(link.provides[s][width] for link in self._counted)], axis=1)
                higher: Counter[tuple[Provided, Groups]] = Counter()
                for (provided, groups), count in stacks.items():
                    chosen_KL = kind_KL[self._feasible(s, width, provided, self._counted) & counted_K]
                    for (form, *own), options in zip(*np.unique(chosen_KL, axis=0, return_counts=True), strict=True):
                        end = tuple(int(new) or old for new, old in zip(own, provided, strict=True))
                        for after, ways in self._groups_after(s, int(form), groups):
                            higher[end, after] += count * int(options) * ways
                stacks = higher
                if len(stacks) > MAX_STATES:
                    return None
            counts.append(sum(stacks.values()))
        return counts

    def _groups_after(self, s: int, form: int, groups: Groups) -> Iterator[tuple[Groups, int]]:
        """The groups that share weights after one more layer, and in how many ways; form 0: it shares none."""
        if not form:
            yield groups, 1
            return
        for after, ways in self.share_names.joined(groups, form, s):
            if self.share_names.assignment(after) is not None:
                yield after, ways

    # ---- building the links

    def _readings(self, space: str) -> list[Link]:
        """One link for each thing that a layer reads from an earlier one: keys, memory."""
        options = [option for slot in self.slots for option in slot.options if option is not None]
        things = sorted({option.reads for option in options} - {"", ALWAYS_AVAILABLE})
        return [self._reading(space, what, options) for what in things]

    def _reading(self, space: str, what: str, options: list[MixerOptions]) -> Link:
        readers = _numbers(option for option in options if option.reads == what)
        lenders = _numbers(option for option in options if option.lends == what)
        fits_WCP = np.zeros((len(self.widths), len(readers) + 1, len(lenders) + 1), dtype=np.bool_)
        fits_WCP[:, 0] = True
        why = f"it reads the {what} of an earlier layer, and no layer of the space provides any."
        for w, d in enumerate(self.widths):
            for (reader, c), (lender, p) in itertools.product(readers.items(), lenders.items()):
                if layer_fits(reader, d) and layer_fits(lender, d):
                    try:
                        reader.check_lender(lender, d)
                        fits_WCP[w, c, p] = True
                    except UserError as wrong:
                        why = str(wrong)
        for name in dict.fromkeys(reader.name for reader in readers):
            if not any(fits_WCP[:, c].any() for reader, c in readers.items() if reader.name == name):
                raise UserError(f"{space}: {name} cannot follow any layer of the space: {why}")
        consumes = self._numbered(lambda option, d: readers.get(option, 0) if option else 0)
        provides = self._numbered(lambda option, d: lenders.get(option, 0) if option else 0)
        return Link(consumes, provides, fits_WCP)

    def _agreements(self) -> list[Link]:
        """One link for each name under which layers share weights or a parameter, if they could disagree about it."""
        options = [option for slot in self.slots for option in slot.options if option is not None]
        sharing = [o for o in options if o.share != NOT_SHARED or type(o).shares is not MixerOptions.shares]
        forms: dict[str, list[Hashable]] = {}
        for option, d in itertools.product(sharing, self.widths):
            for name, form in _shared_forms(option, d).items():
                forms.setdefault(name, []).append(form)
        named = {f"{o.name} {o.share}" for o in options if o.share != NOT_SHARED}
        links = [self._agreement(name, _numbers(known), name in named) for name, known in forms.items()]
        return [link for link in links if link is not None]

    def _agreement(self, name: str, forms: dict[Hashable, int], of_name: bool) -> Link | None:
        numbers = self._numbered(lambda option, d: forms.get(_shared_forms(option, d).get(name), 0) if option else 0)
        of_width = [{*np.concatenate([slot_WK[w] for slot_WK in numbers]).tolist()} for w in range(len(self.widths))]
        if max(len(distinct - {0}) for distinct in of_width) < 2:
            return None
        fits_CP = np.eye(len(forms) + 1, dtype=np.bool_)  # equal to the earlier layers
        fits_CP[0], fits_CP[:, 0] = True, True
        return Link(numbers, numbers, np.stack([fits_CP] * len(self.widths)), of_name)

    def _numbered(self, number: Callable[[MixerOptions | None, int], int]) -> tuple[Ints, ...]:
        return tuple(
            np.array([[number(option, d) for option in slot.options] for d in self.widths], dtype=np.int64)
            for slot in self.slots
        )

    # ---- one layer

    def _satisfied(self, s: int, width_N: Ints, option_N: Genes, provided_NL: Ints) -> Mask:
        satisfied_N = np.ones(len(width_N), dtype=np.bool_)
        for at, link in enumerate(self.links):
            satisfied_N &= link.fits_WCP[width_N, link.consumes[s][width_N, option_N], provided_NL[:, at]]
        return satisfied_N

    def _after(self, s: int, width_N: Ints, option_N: Genes, provided_NL: Ints) -> Ints:
        """The nearest providers after one more layer."""
        own_NL = np.stack([link.provides[s][width_N, option_N] for link in self.links], axis=1)
        return np.where(own_NL > 0, own_NL, provided_NL)

    def _feasible(self, s: int, width: int, provided: Sequence[int], links: Sequence[Link]) -> Mask:
        """Which options of a slot are feasible after these providers."""
        feasible_K = self.allowed.mask(s, width)
        for link, number in zip(links, provided, strict=True):
            feasible_K = feasible_K & link.fits_WCP[width, link.consumes[s][width], number]
        return feasible_K

    def _resampled(self, rng: np.random.Generator, s: int, width_N: Ints, option_N: Genes, provided_NL: Ints) -> Genes:
        resampled_N: Genes = option_N.copy()
        # Candidates of one width, with the same mixer and the same providers before it, sample from the same options.
        cases, case_N = np.unique(
            np.column_stack([width_N, self._name_SK[s][option_N], provided_NL]), axis=0, return_inverse=True
        )
        for number, (width, name, *provided) in enumerate(cases.tolist()):
            feasible_K = self._feasible(s, width, provided, self.links)
            same_K = feasible_K & (self._name_SK[s] == name)
            weights_K = self.slots[s].weights * (same_K if same_K.any() else feasible_K)
            if weights_K.any():
                of_case = np.flatnonzero(case_N.ravel() == number)
                resampled_N[of_case] = rng.choice(len(weights_K), size=len(of_case), p=weights_K / weights_K.sum())
        return resampled_N


def _numbers(things: Iterable[Thing]) -> dict[Thing, int]:
    """Distinct things, numbered from 1."""
    return {thing: number for number, thing in enumerate(dict.fromkeys(things), 1)}


def _shared_forms(option: MixerOptions, d: int) -> dict[str, Hashable]:
    """What a layer shares, by name, and the form that all layers must agree on: a shape, or equal options."""
    if not layer_fits(option, d):
        return {}
    named: dict[str, Hashable] = {f"{option.name} {option.share}": option} if option.share != NOT_SHARED else {}
    return {**option.shares(d), **named}


class Group(NamedTuple):
    """Layers that share weights: their form, and the slots they are in as a bit mask."""

    form: int
    slots: int


Groups = tuple[Group, ...]


class ShareNames:
    """The share names of one space. Names and forms are numbered from 1; 0 is a layer that shares nothing."""

    def __init__(self, slots: tuple[Slot, ...]) -> None:
        self.slots = slots
        names: dict[tuple[str, str], int] = {}
        forms: dict[MixerOptions, int] = {}
        self._option: dict[tuple[int, int, int], int] = {}  # (slot, form, name) → index of the option
        self.form_SK = [np.zeros(len(slot.options), dtype=np.int64) for slot in slots]
        self._name_SK = [np.zeros(len(slot.options), dtype=np.int64) for slot in slots]
        for s, slot in enumerate(slots):
            for k, option in enumerate(slot.options):
                if option is None or option.share == NOT_SHARED:
                    continue
                name = names.setdefault((option.name, option.share), len(names) + 1)
                form = forms.setdefault(replace(option, share=NOT_SHARED), len(forms) + 1)
                self._name_SK[s][k], self.form_SK[s][k], self._option[s, form, name] = name, form, k
        self._mixer_of_name = {number: mixer for (mixer, _), number in names.items()}
        self._assignments: dict[Groups, tuple[int, ...] | None] = {}

    def __bool__(self) -> bool:
        """Whether some mixer has several names, so that one network can be written in several ways."""
        return max(Counter(self._mixer_of_name.values()).values(), default=0) > 1

    def canonical(self, options_NBS: Genes, present_NB: Mask) -> Genes:
        """Rename each candidate's groups in order of appearance, as far as the space has those names."""
        options_NBS = options_NBS.copy()
        name_NBS = np.stack([name_K[options_NBS[:, :, s]] for s, name_K in enumerate(self._name_SK)], axis=2)
        form_NBS = np.stack([form_K[options_NBS[:, :, s]] for s, form_K in enumerate(self.form_SK)], axis=2)
        name_NBS = np.where(present_NB[:, :, None], name_NBS, 0)
        cases_NG3, agree_N = self._cases(name_NBS, form_NBS)
        cases, case_N = np.unique(cases_NG3.reshape(len(options_NBS), -1), axis=0, return_inverse=True)
        for number, flat in enumerate(cases):
            used = [(order, g, Group(form, slots)) for g, (order, form, slots) in enumerate(flat.reshape(-1, 3), 1)]
            by_appearance = sorted(row for row in used if row[2].slots)
            named = self.assignment(tuple(group for _, _, group in by_appearance))
            assert named is not None  # the candidate's own names are an assignment
            of_case_N = (case_N.ravel() == number) & agree_N
            for s, slot in enumerate(self.slots):
                renamed_K = np.arange(len(slot.options), dtype=np.int16)
                for (_, old, group), new in zip(by_appearance, named, strict=True):
                    if (s, group.form, old) in self._option and (s, group.form, new) in self._option:
                        renamed_K[self._option[s, group.form, old]] = self._option[s, group.form, new]
                options_NBS[of_case_N, :, s] = renamed_K[options_NBS[of_case_N, :, s]]
        return options_NBS

    def assignment(self, groups: Groups) -> tuple[int, ...] | None:
        """The first distinct names, one per group, under which the space has all of these groups, if there are any."""
        if groups not in self._assignments:
            self._assignments[groups] = next(self._assigned(groups, ()), None)
        return self._assignments[groups]

    def joined(self, groups: Groups, form: int, s: int) -> Iterator[tuple[Groups, int]]:
        """The possible groups (sorted) after one more layer of a form in a slot, which joins a group or starts one;
        with each, its number of ways."""
        bit = 1 << s
        for group, ways in Counter(group for group in groups if group.form == form).items():
            rest = list(groups)
            rest.remove(group)
            yield tuple(sorted([*rest, Group(form, group.slots | bit)])), ways
        yield tuple(sorted([*groups, Group(form, bit)])), 1

    def _assigned(self, groups: Groups, taken: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        if len(taken) == len(groups):
            yield taken
            return
        form, slots = groups[len(taken)]
        for name in self._mixer_of_name:
            available = all((s, form, name) in self._option for s in range(len(self.slots)) if slots >> s & 1)
            if available and name not in taken:
                yield from self._assigned(groups, (*taken, name))

    def _cases(self, name_NBS: NDArray[np.int64], form_NBS: NDArray[np.int64]) -> tuple[NDArray[np.int64], Mask]:
        """For every name its order of appearance, form and slots; and which candidates have a single form per name.
        (The others cannot be built, and keep their names.)"""
        n, positions = len(name_NBS), name_NBS.shape[1] * name_NBS.shape[2]
        bits_S = 1 << np.arange(len(self.slots))
        first_NG, rows, agree_N = [], [], np.ones(n, dtype=np.bool_)
        for name in self._mixer_of_name:
            named_NBS = name_NBS == name
            first_N = np.where(named_NBS.any(axis=(1, 2)), named_NBS.reshape(n, positions).argmax(axis=1), positions)
            form_N = np.where(first_N < positions, form_NBS.reshape(n, positions)[np.arange(n), first_N % positions], 0)
            agree_N &= ((form_NBS == form_N[:, None, None]) | ~named_NBS).all(axis=(1, 2))
            first_NG.append(first_N)
            rows.append((form_N, named_NBS.any(axis=1) @ bits_S))
        order_NG = np.argsort(np.argsort(np.stack(first_NG, axis=1), axis=1, kind="stable"), axis=1)
        cases = [np.stack([order_NG[:, g], form_N, slots_N], axis=1) for g, (form_N, slots_N) in enumerate(rows)]
        return np.where(agree_N[:, None, None], np.stack(cases, axis=1), 0), agree_N
