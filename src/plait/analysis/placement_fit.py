"""Fitting a placement pattern to architectures found by search: the best PAR pattern, and whether it is significant.

PAR (Mandava et al. 2020, arXiv:2009.04534, section 2.3) summarises six searches in two numbers: one attention block per
p blocks, spaced evenly in the first fraction of the layers. `plait.spec.dialects.par_pattern` builds that pattern; here
p and the fraction are fitted. p is given by the number of attention blocks and only the fraction by their positions:
maximising agreement alone would always choose few blocks, because most layers are not attention anyway.

Pattern and architecture agree on a layer if both have attention there or neither has. For comparison, the same figure
is computed for random placement of as many blocks, for architectures left out of the fit and for other patterns, and as
a p-value against random placements.

Letters: S architectures, L layers, C candidates of a pattern, D random samples.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil

import numpy as np
from numpy.typing import NDArray

from plait.analysis.pareto import Mask
from plait.spec.dialects import TWO_THIRDS, par_attention, par_pattern, par_room, sandwich_pattern

DRAWS = 2000


@dataclass(frozen=True)
class Pattern:
    """A pattern with its parameters: the spec text, and its layers as letters s and f."""

    spec: str
    pattern: str

    @property
    def attention_L(self) -> Mask:
        return np.array([letter == "s" for letter in self.pattern])


#: Architectures → the candidates of a pattern, preferred ones first.
Patterns = Callable[[Mask], Sequence[Pattern]]


@dataclass(frozen=True)
class Fit:
    """`agreement`: the mean share of layers on which pattern and architectures agree; `random`: its expectation for as
    many randomly placed blocks; `validation`: the leave-one-out agreement (None for a single architecture)."""

    name: str
    chosen: Pattern
    agreement: float
    random: float
    validation: float | None

    @property
    def skill(self) -> float:
        """0 for random placement, 1 for perfect agreement."""
        return (self.agreement - self.random) / (1 - self.random) if self.random < 1 else 0.0

    def as_dict(self) -> dict[str, object]:
        return {
            "placement": self.name,
            "spec": self.chosen.spec,
            "pattern": self.chosen.pattern,
            "attention": self.chosen.pattern.count("s"),
            "agreement": self.agreement,
            "random": self.random,
            "validation": self.validation,
            "skill": self.skill,
        }


def fit_patterns(found_SL: Mask) -> list[Fit]:
    """The fitted PAR pattern, then the alternatives it must beat. `found_SL`: which layers are attention."""
    patterns: dict[str, Patterns] = {
        "fitted": par_candidates,
        "published": _published,
        "interleaved": _interleaved,
    }
    if found_SL.shape[1] % 2 == 0:  # a sandwich is made of pairs
        patterns["sandwich"] = _sandwiches
    return [_fit(name, patterns_of, found_SL) for name, patterns_of in patterns.items()]


def chance(found_SL: Mask, draws: int = DRAWS, seed: int = 0) -> float:
    """The p-value of the PAR pattern: how often it fits random placements of as many blocks at least as well.

    The pattern is refitted to every random sample, so its degrees of freedom are accounted for. Never 0: the real
    placement counts as one sample.
    """
    candidates_CL = np.stack([pattern.attention_L for pattern in par_candidates(found_SL)]).astype(np.int64)
    stream = np.random.default_rng(seed)
    at_least = 1
    best = _hits(candidates_CL, found_SL)
    for _ in range(draws):
        at_least += _hits(candidates_CL, stream.permuted(found_SL, axis=1)) >= best
    return at_least / (draws + 1)


def par_candidates(found_SL: Mask) -> list[Pattern]:
    """Every PAR pattern with the average number of attention blocks of the architectures.

    If several fractions give the same pattern, two thirds is preferred, then the shortest decimal.
    """
    n = found_SL.shape[1]
    count = max(1, ceil(found_SL.sum() / len(found_SL) - 0.5))  # a half goes down, as in the pattern itself
    p = next(p for digits in range(2, 12) if par_attention(n, p := round(n / count, digits)) == count)

    def pattern_of(room: int) -> str:
        return par_pattern(n, p, room / n)

    candidates = []
    for _, same in groupby(range(count, n + 1), key=pattern_of):
        within = _share(n, set(same))
        suffix = "" if within == TWO_THIRDS else f",within={within:.12g}"
        candidate = Pattern(f"rule:par(n={n},p={p:.12g}{suffix})", par_pattern(n, p, within))
        candidates.append((abs(within - TWO_THIRDS), candidate))
    return [candidate for _, candidate in sorted(candidates, key=lambda pair: pair[0])]


def _share(n: int, rooms: set[int]) -> float:
    """The preferred fraction of n layers that gives one of these numbers of layers."""
    if par_room(n, TWO_THIRDS) in rooms:
        return TWO_THIRDS
    for scale in (10, 100, 1000, 10_000):
        fitting = [part / scale for part in range(1, scale + 1) if par_room(n, part / scale) in rooms]
        if fitting:
            return min(fitting, key=lambda share: abs(share - TWO_THIRDS))
    raise AssertionError(f"no share of {n} layers is any of {rooms}")


def _published(found_SL: Mask) -> list[Pattern]:
    n = found_SL.shape[1]
    return [Pattern(f"rule:par(n={n},p=5)", par_pattern(n, 5))]


def _interleaved(found_SL: Mask) -> list[Pattern]:
    n = found_SL.shape[1]
    pattern = ("sf" * n)[:n]
    return [Pattern(f"rule:sandwich(k=0,n={n // 2})" if n % 2 == 0 else f"par:{pattern}", pattern)]


def _sandwiches(found_SL: Mask) -> list[Pattern]:
    pairs = found_SL.shape[1] // 2
    return [Pattern(f"rule:sandwich(k={k},n={pairs})", sandwich_pattern(k, pairs)) for k in range(1, pairs + 1)]


def _fit(name: str, patterns_of: Patterns, found_SL: Mask) -> Fit:
    chosen = _best(patterns_of(found_SL), found_SL)
    validation = None
    if len(found_SL) > 1:
        without = ((np.delete(found_SL, place, axis=0), found_SL[place : place + 1]) for place in range(len(found_SL)))
        validation = _mean(_agreement(_best(patterns_of(others), others), left_out) for others, left_out in without)
    return Fit(name, chosen, _agreement(chosen, found_SL), _random_agreement(chosen, found_SL), validation)


def _best(candidates: Sequence[Pattern], found_SL: Mask) -> Pattern:
    """The candidate with the highest agreement; of equals the first, which is preferred."""
    return max(candidates, key=lambda pattern: _agreement(pattern, found_SL))


def _agreement(pattern: Pattern, found_SL: Mask) -> float:
    return float((pattern.attention_L == found_SL).mean())


def _random_agreement(pattern: Pattern, found_SL: Mask) -> float:
    """The expected agreement of as many blocks as the pattern has, placed at random."""
    share, shares_S = pattern.attention_L.mean(), found_SL.mean(axis=1)
    return float((share * shares_S + (1 - share) * (1 - shares_S)).mean())


def _hits(candidates_CL: NDArray[np.int64], found_SL: Mask) -> int:
    """Attention blocks in common with the best candidate; all have equally many, so agreement increases with it."""
    return int((candidates_CL @ found_SL.sum(axis=0)).max())


def _mean(values: Iterable[float]) -> float:
    return float(np.mean(list(values)))
