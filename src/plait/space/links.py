"""Layers of a candidate that depend on each other, checked and repaired for many candidates at once.

Three things tie layers together:

    reading   `cross-attn` and `gmu` use what the nearest earlier `attn` or `mamba` has computed, and must fit its size
    sharing   layers of one mixer with the same `share=NAME` hold their weights once, so their options must be equal
    shapes    layers that share a single parameter (the biases of `xl-attn`) must want it in the same shape

All three are one rule. A layer may *give* something to those behind it, and may *ask* something of the nearest earlier
layer that gives; a table says which givers satisfy which askers. A candidate is then checked in one pass over its
layers, and repaired in the same way: a layer that asks in vain is replaced by one that does not.

Letters: N candidates, B layers, S slots, W widths, K options of a slot, A askers, G givers.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.mixers.options import NOT_SHARED, MixerOptions
from plait.space.allowed import Allowed, layer_fits
from plait.space.constraints import Mask
from plait.space.declaration import Slot
from plait.space.share_names import Groups, ShareNames

Genes = NDArray[np.int16]
Ints = NDArray[np.int64]
Thing = TypeVar("Thing", bound=Hashable)
#: What each link was last given, one number per link; 0: nothing so far.
Given = tuple[int, ...]
ALWAYS_THERE = "embedding"  # what `zamba2` reads needs no layer before it
MOST_STATES = 1000  # what stacks of layers may differ in, up to which they are counted


@dataclass(frozen=True)
class Link:
    """One kind of dependence. Askers and givers have numbers from 1; 0 asks for nothing, or gives nothing.

    asks, gives   per slot, the numbers of every option at every width
    fits_WAG      whether an asker is satisfied by a giver; column 0 says whether it can do without one
    of_name       whether it is about the layers of one `share=NAME`
    """

    asks: tuple[Ints, ...]
    gives: tuple[Ints, ...]
    fits_WAG: Mask
    of_name: bool = False


class Links:
    """The links of one space; empty for most spaces, and then nothing here costs any time."""

    def __init__(self, space: str, slots: tuple[Slot, ...], widths: tuple[int, ...], allowed: Allowed) -> None:
        self.slots, self.widths, self.allowed = slots, widths, allowed
        self.links = (*self._readings(space), *self._agreements())
        self.share_names = ShareNames(slots)
        # Layers that share their weights are counted by who shares with whom, not by name.
        self._counted = tuple(link for link in self.links if not link.of_name)
        names = list(dict.fromkeys(option.name if option else "" for slot in slots for option in slot.options))
        self._name_SK = [np.array([names.index(o.name if o else "") for o in slot.options]) for slot in slots]
        if self.links and not any(self._possible(0, w, self._nothing).any() for w in range(len(widths))):
            raise UserError(
                f"{space}: every choice of the first layer reads of an earlier layer; add one that does not."
            )

    def __bool__(self) -> bool:
        return bool(self.links)

    def hold(self, width_N: Ints, options_NBS: Genes, present_NB: Mask) -> Mask:
        """Which candidates have no layer that asks in vain."""
        found_N = np.ones(len(width_N), dtype=np.bool_)
        given_NL = np.zeros((len(width_N), len(self.links)), dtype=np.int64)
        for b in range(options_NBS.shape[1] if self.links else 0):
            for s in range(len(self.slots)):
                option_N = options_NBS[:, b, s]
                found_N &= self._satisfied(s, width_N, option_N, given_NL) | ~present_NB[:, b]
                given_NL = np.where(present_NB[:, b, None], self._after(s, width_N, option_N, given_NL), given_NL)
        return found_N

    def repaired(self, rng: np.random.Generator, width_N: Ints, options_NBS: Genes) -> Genes:
        """Every layer that asks in vain is drawn again: another setting of the same mixer where one is satisfied, else
        any other layer. Where no layer of its slot would do it stays, and the candidate is refused later."""
        if not self.links:
            return options_NBS
        options_NBS = options_NBS.copy()
        given_NL = np.zeros((len(width_N), len(self.links)), dtype=np.int64)
        for b in range(options_NBS.shape[1]):
            for s in range(len(self.slots)):
                option_N = options_NBS[:, b, s]  # a view
                wrong = np.flatnonzero(~self._satisfied(s, width_N, option_N, given_NL))
                option_N[wrong] = self._drawn_again(rng, s, width_N[wrong], option_N[wrong], given_NL[wrong])
                given_NL = self._after(s, width_N, option_N, given_NL)
        return options_NBS

    def count(self, width: int, deepest: int) -> list[int] | None:
        """How many different stacks of 1, 2, … `deepest` layers there are at a width, layers that are nothing left
        out; None where it would take too long."""
        # Stacks by what they have given at their end and by which of their layers share.
        stacks: Counter[tuple[Given, Groups]] = Counter({((0,) * len(self._counted), ()): 1})
        found = []
        for _ in range(deepest):
            for s, slot in enumerate(self.slots):
                something_K = np.array([option is not None or s > 0 for option in slot.options])
                form_K = self.share_names.form_SK[s]
                # Options that give the same and share in the same way are counted together; of the names that a shared
                # layer could have, the first stands for all.
                _, first_K = np.unique(form_K, return_index=True)
                counted_K = something_K & ((form_K == 0) | np.isin(np.arange(len(form_K)), first_K))
                what_KL = np.stack([form_K, *(link.gives[s][width] for link in self._counted)], axis=1)
                higher: Counter[tuple[Given, Groups]] = Counter()
                for (given, groups), count in stacks.items():
                    chosen_KL = what_KL[self._fitting(s, width, given, self._counted) & counted_K]
                    for (form, *gives), options in zip(*np.unique(chosen_KL, axis=0, return_counts=True), strict=True):
                        end = tuple(int(new) or old for new, old in zip(gives, given, strict=True))
                        for after, ways in self._groups_after(s, int(form), groups):
                            higher[end, after] += count * int(options) * ways
                stacks = higher
                if len(stacks) > MOST_STATES:
                    return None
            found.append(sum(stacks.values()))
        return found

    def _groups_after(self, s: int, form: int, groups: Groups) -> Iterator[tuple[Groups, int]]:
        """Which layers share weights after one more, and in how many ways; form 0: it shares none."""
        if not form:
            yield groups, 1
            return
        for after, ways in self.share_names.joined(groups, form, s):
            if self.share_names.assignment(after) is not None:
                yield after, ways

    # ---- which links there are

    def _readings(self, space: str) -> list[Link]:
        """One for each thing that a layer of the space reads of another: keys, memory."""
        options = [option for slot in self.slots for option in slot.options if option is not None]
        return [self._reading(space, what, options) for what in sorted({o.reads for o in options} - {"", ALWAYS_THERE})]

    def _reading(self, space: str, what: str, options: list[MixerOptions]) -> Link:
        readers = _numbers(option for option in options if option.reads == what)
        lenders = _numbers(option for option in options if option.lends == what)
        fits_WAG = np.zeros((len(self.widths), len(readers) + 1, len(lenders) + 1), dtype=np.bool_)
        fits_WAG[:, 0] = True
        why = f"it reads the {what} of an earlier layer, and none of the space lends any."
        for w, d in enumerate(self.widths):
            for (reader, a), (lender, g) in itertools.product(readers.items(), lenders.items()):
                if layer_fits(reader, d) and layer_fits(lender, d):
                    try:
                        reader.check_lender(lender, d)
                        fits_WAG[w, a, g] = True
                    except UserError as wrong:
                        why = str(wrong)
        for name in dict.fromkeys(reader.name for reader in readers):
            if not any(fits_WAG[:, a].any() for reader, a in readers.items() if reader.name == name):
                raise UserError(f"{space}: {name} can stand behind no layer of the space: {why}")
        asks = self._numbered(lambda option, d: readers.get(option, 0) if option else 0)
        return Link(asks, self._numbered(lambda option, d: lenders.get(option, 0) if option else 0), fits_WAG)

    def _agreements(self) -> list[Link]:
        """One for each name under which layers share weights or a parameter, where they could disagree about it."""
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
        if max(len(found - {0}) for found in of_width) < 2:
            return None
        fits_AG = np.eye(len(forms) + 1, dtype=np.bool_)  # as the layers before it have it
        fits_AG[0], fits_AG[:, 0] = True, True
        return Link(numbers, numbers, np.stack([fits_AG] * len(self.widths)), of_name)

    def _numbered(self, number: Callable[[MixerOptions | None, int], int]) -> tuple[Ints, ...]:
        return tuple(
            np.array([[number(option, d) for option in slot.options] for d in self.widths], dtype=np.int64)
            for slot in self.slots
        )

    # ---- one layer

    @property
    def _nothing(self) -> Given:
        return (0,) * len(self.links)

    def _satisfied(self, s: int, width_N: Ints, option_N: Genes, given_NL: Ints) -> Mask:
        found_N = np.ones(len(width_N), dtype=np.bool_)
        for at, link in enumerate(self.links):
            found_N &= link.fits_WAG[width_N, link.asks[s][width_N, option_N], given_NL[:, at]]
        return found_N

    def _after(self, s: int, width_N: Ints, option_N: Genes, given_NL: Ints) -> Ints:
        gives_NL = np.stack([link.gives[s][width_N, option_N] for link in self.links], axis=1)
        return np.where(gives_NL > 0, gives_NL, given_NL)

    def _possible(self, s: int, width: int, given: Sequence[int]) -> Mask:
        """Which options of a slot may stand where so much has been given."""
        return self._fitting(s, width, given, self.links)

    def _fitting(self, s: int, width: int, given: Sequence[int], links: Sequence[Link]) -> Mask:
        fine_K = self.allowed.mask(s, width)
        for link, number in zip(links, given, strict=True):
            fine_K = fine_K & link.fits_WAG[width, link.asks[s][width], number]
        return fine_K

    def _drawn_again(self, rng: np.random.Generator, s: int, width_N: Ints, option_N: Genes, given_NL: Ints) -> Genes:
        drawn_N: Genes = option_N.copy()
        # Candidates of one width, with the same mixer there and the same before it, draw from the same options.
        cases, case_N = np.unique(
            np.column_stack([width_N, self._name_SK[s][option_N], given_NL]), axis=0, return_inverse=True
        )
        for number, (width, name, *given) in enumerate(cases.tolist()):
            possible_K = self._possible(s, width, given)
            same_K = possible_K & (self._name_SK[s] == name)
            weights_K = self.slots[s].weights * (same_K if same_K.any() else possible_K)
            if weights_K.any():
                of_case = np.flatnonzero(case_N.ravel() == number)
                drawn_N[of_case] = rng.choice(len(weights_K), size=len(of_case), p=weights_K / weights_K.sum())
        return drawn_N


def _numbers(things: Iterable[Thing]) -> dict[Thing, int]:
    """Each once, numbered from 1."""
    return {thing: number for number, thing in enumerate(dict.fromkeys(things), 1)}


def _shared_forms(option: MixerOptions, d: int) -> dict[str, Hashable]:
    """What a layer shares, by name, and the form that all layers must have it in: a shape, or equal options."""
    if not layer_fits(option, d):
        return {}
    named: dict[str, Hashable] = {f"{option.name} {option.share}": option} if option.share != NOT_SHARED else {}
    return {**option.shares(d), **named}
