"""Canonical names for weight sharing: which layers share weights, independent of the names in `share=NAME`.

A name only identifies a group of layers. If a space offers several names for one mixer, rows that differ only in these
names are the same network. `ShareNames` renames the groups in order of first appearance, so that equal networks are
equal rows, and says which groups can occur together, so that networks can be counted.

A *form* is a layer's options without its name. All layers of a group have the same form.

Letters: N candidates, B layers, S slots, P = B S positions, K options of a slot, G names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plait.mixers.options import NOT_SHARED, MixerOptions
from plait.space.constraints import Mask
from plait.space.declaration import Slot

Genes = NDArray[np.int16]


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
