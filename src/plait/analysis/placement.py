"""Where attention is placed in architectures found by search: by thirds of the depth, by kind, and as a placement
pattern.

PAR (Mandava et al. 2020, arXiv:2009.04534, Fig. 3 and section 2.3) counts attention blocks in thirds of the networks
found by six searches, and concludes that few are needed, all in the first two thirds. Here the same counts come with
their spread over the searches and the probability of such counts if blocks were placed at random. Intervals are 95 %
over the architectures, with Student's t because these are few; a single architecture has none.

"Attention" means every sequence mixer: all mixers that are neither channel mixers nor identity. Thirds end at layers
⌊n/3⌋ and ⌊2n/3⌋, as in the pattern.

Letters: S architectures, L layers.
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import comb
from string import ascii_letters
from typing import Any

import numpy as np

from plait.analysis.intervals import group_share_interval
from plait.analysis.pareto import Floats, Mask
from plait.analysis.placement_fit import Fit, chance, fit_patterns
from plait.core.errors import UserError
from plait.core.units import percent

NOTHING = ("none", "identity")
NOTHING_LETTER = "·"
SIGNIFICANT = 0.05
ALL = "all"
THIRDS = ("first", "second", "last")


@dataclass(frozen=True)
class Third:
    """The number of sequence mixers of a kind (`all`: of any) in a third, over the architectures. `low` to `high` is
    the interval of the mean; these and `std` are None for a single architecture."""

    kind: str
    third: str
    layers: int
    mean: float
    std: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class EarlyShare:
    """The share of attention in the first two thirds, with its interval.

    `random` is the share expected from random placement; `chance` the exact probability that random placement puts at
    least as many blocks there.
    """

    value: float
    low: float | None
    high: float | None
    random: float
    chance: float

    @property
    def concentrated(self) -> bool:
        return self.chance < SIGNIFICANT


@dataclass(frozen=True)
class Placement:
    """`p` is the number of layers per attention block, with its interval; None for an end that is unknown or unbounded.
    If no architecture has attention, `p`, `early` and `chance` are None and there are no fits. Otherwise the first fit
    is the extracted pattern, and `chance` the p-value of its fit against random placement."""

    layers: int
    letters: Mapping[str, str]
    patterns: tuple[str, ...]
    counts: tuple[int, ...]
    thirds: tuple[Third, ...]
    p: float | None = None
    p_interval: tuple[float | None, float | None] = (None, None)
    early: EarlyShare | None = None
    fits: tuple[Fit, ...] = ()
    chance: float | None = None

    @property
    def fitted(self) -> Fit | None:
        return self.fits[0] if self.fits else None

    @property
    def says_something(self) -> bool:
        """Whether the pattern fits significantly better than it fits random placements."""
        return self.chance is not None and self.chance < SIGNIFICANT

    @property
    def statement(self) -> str:
        many = f"{len(self.patterns)} architectures" if len(self.patterns) > 1 else "1 architecture"
        summary = f"{many} of {self.layers} layers, {np.mean(self.counts):.3g} of them attention on average"
        if self.early is None or self.fitted is None or self.chance is None:
            return f"{summary}: there is no pattern to fit."
        early, fitted = self.early, self.fitted
        return " ".join(
            (
                f"{summary} (p = {self.p:.3g}).",
                f"Attention concentrates in the first two thirds: {'yes' if early.concentrated else 'no'},",
                f"share {early.value:.2f}{_brackets(early.low, early.high)} where {early.random:.2f} is expected of",
                "places at random",
                f"(chance {_percent(early.chance)}).",
                f"{fitted.chosen.spec} agrees with them on {percent(fitted.agreement)} of the layers, as many blocks",
                f"anywhere on {percent(fitted.random)}:",
                "the pattern says something;" if self.says_something else "the pattern says nothing;",
                f"random places are fitted as well in {_percent(self.chance)} of draws.",
                *self._left_out(fitted),
                *self._better(fitted),
            )
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "layers": self.layers,
            "letters": dict(self.letters),
            "patterns": list(self.patterns),
            "counts": list(self.counts),
            "thirds": [asdict(third) for third in self.thirds],
            "p": self.p,
            "p_interval": list(self.p_interval),
            "early": None if self.early is None else {**asdict(self.early), "concentrated": self.early.concentrated},
            "fitted": None if self.fitted is None else self.fitted.chosen.spec,
            "fits": [fit.as_dict() for fit in self.fits],
            "chance": self.chance,
            "says_something": self.says_something,
            "statement": self.statement,
        }

    @staticmethod
    def _left_out(fitted: Fit) -> list[str]:
        if fitted.validation is None:
            return []
        return [f"With architectures left out of the fit it agrees on {percent(fitted.validation)}."]

    def _better(self, fitted: Fit) -> list[str]:
        """An alternative with more skill, if any. Agreement alone is misleading: it rises with fewer blocks."""
        rival = max(self.fits[1:], key=lambda fit: fit.skill)
        if not self.says_something or rival.skill <= fitted.skill:
            return []
        blocks = f"with {rival.chosen.pattern.count('s')} attention blocks"
        return [f"{rival.chosen.spec}, {blocks}, has more skill: {rival.skill:.2f} against {fitted.skill:.2f}."]


def judge_placement(architectures: Sequence[Sequence[str]], channel: Collection[str]) -> Placement:
    """Analyse the placement in these architectures, each given as its mixers' names in order. `channel`: names of
    channel mixers."""
    layers = _depth(architectures)
    names = dict.fromkeys(name for mixers in architectures for name in mixers)
    kinds = [name for name in names if name not in (*channel, *NOTHING)]
    names_SL = np.array([list(mixers) for mixers in architectures])
    attention_SL: Mask = np.isin(names_SL, kinds)
    counts_S = attention_SL.sum(axis=1)
    letters = letters_of(architectures, channel)
    masks = {ALL: attention_SL} | ({kind: names_SL == kind for kind in kinds} if len(kinds) > 1 else {})
    thirds = tuple(third for kind, there_SL in masks.items() for third in _thirds(kind, there_SL))
    patterns = tuple("".join(letters[name] for name in mixers) for mixers in architectures)
    counts = tuple(int(count) for count in counts_S)
    if not kinds:
        return Placement(layers, letters, patterns, counts, thirds)
    least, most = _count_interval(counts_S, layers)
    return Placement(
        layers,
        letters,
        patterns,
        counts,
        thirds,
        p=layers / float(counts_S.mean()),
        p_interval=(layers / most if most else None, layers / least if least else None),
        early=_early_share(attention_SL),
        fits=tuple(fit_patterns(attention_SL)),
        chance=chance(attention_SL),
    )


def letters_of(architectures: Sequence[Sequence[str]], channel: Collection[str]) -> dict[str, str]:
    """A letter per mixer: s for the only sequence mixer, f for the only channel mixer, otherwise from its name."""
    names = sorted({name for mixers in architectures for name in mixers} - set(NOTHING))
    sequence, channels = ([name for name in names if (name in channel) == side] for side in (False, True))
    letters = {NOTHING[0]: NOTHING_LETTER, NOTHING[1]: NOTHING_LETTER}
    for side, letter in ((sequence, "s"), (channels, "f")):
        if len(side) == 1:
            letters[side[0]] = letter
    for name in names:
        if name not in letters:
            further = map(chr, itertools.count(ord("α")))  # for more than 52 mixers
            spelled = filter(str.isalpha, itertools.chain(name, ascii_letters, further))
            letters[name] = next(letter for letter in spelled if letter not in letters.values())
    return letters


def _depth(architectures: Sequence[Sequence[str]]) -> int:
    depths = sorted({len(mixers) for mixers in architectures})
    if not depths:
        raise UserError("there are no architectures to fit a placement to.")
    if len(depths) > 1:
        raise UserError(f"placements are compared layer by layer, but the architectures have {depths} layers.")
    if depths[0] < 3:
        raise UserError(f"{depths[0]} layers cannot be cut into thirds.")
    return depths[0]


def _thirds(kind: str, there_SL: Mask) -> list[Third]:
    layers = there_SL.shape[1]
    ends = (0, layers // 3, 2 * layers // 3, layers)
    thirds = []
    for name, start, end in zip(THIRDS, ends[:-1], ends[1:], strict=True):
        counts_S = there_SL[:, start:end].sum(axis=1)
        std = float(counts_S.std(ddof=1)) if len(counts_S) > 1 else None
        low, high = _count_interval(counts_S, end - start)
        thirds.append(Third(kind, name, end - start, float(counts_S.mean()), std, low, high))
    return thirds


def _early_share(attention_SL: Mask) -> EarlyShare:
    early = 2 * attention_SL.shape[1] // 3
    there_S, all_S = attention_SL[:, :early].sum(axis=1), attention_SL.sum(axis=1)
    likely = np.ones(1)
    for count in all_S.tolist():
        likely = np.convolve(likely, _ways(attention_SL.shape[1], early, count))
    share = float(there_S.sum() / all_S.sum())
    # The share is a ratio of sums; its standard error is that of the linearised values (delta method).
    above_S = share + (there_S - share * all_S) / all_S.mean()
    low, high = group_share_interval(above_S, float(all_S.sum())) or (None, None)
    return EarlyShare(
        share,
        low,
        high,
        random=early / attention_SL.shape[1],
        chance=min(1.0, float(likely[there_S.sum() :].sum())),
    )


def _ways(layers: int, early: int, count: int) -> Floats:
    """The probability that 0, 1, … of `count` blocks are in the first `early` layers (hypergeometric)."""
    ways = [comb(early, there) * comb(layers - early, count - there) for there in range(count + 1)]
    return np.array([way / comb(layers, count) for way in ways])


def _count_interval(counts_S: np.ndarray, of: int) -> tuple[float | None, float | None]:
    """The interval of the mean of counts, each out of `of` layers."""
    interval = group_share_interval(counts_S / of, float(of * len(counts_S)))
    return (None, None) if interval is None else (of * interval[0], of * interval[1])


def _brackets(low: float | None, high: float | None) -> str:
    return "" if low is None or high is None else f" [{low:.2f}, {high:.2f}]"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %" if share >= 1e-4 else "less than 0.01 %"
