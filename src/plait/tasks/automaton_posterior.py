"""The best possible prediction on RegBench: the posterior over automata, given the tokens so far.

The prior (`plait.tasks.regbench`): 4 to `nodes` states and 4 to `vocab` symbols, uniformly; every state has one to
three edges, with different symbols, to different states other than itself; a string takes each edge of a state with
equal probability. A hypothesis is the part of an automaton that the tokens so far determine: its visited states, in
order of first visit, and the target of every edge taken. Everything else is marginalised in closed form. With k known
edges of a state that was left n times, s visited states, and n_j of them with at least j edges, a hypothesis has weight

    ∏_states Σ_e≥k e!/(e−k)! e⁻ⁿ  ·  Σ_S (S−1)!/(S−s)! w(S−1)  ·  Σ_A A!/(A−c)! w(A),   w(x) = x^−n₁ (x−1)^−n₂ (x−2)^−n₃

over edges e, states S and symbols A, of which c were seen. An unknown symbol branches a hypothesis, once per state that
the edge may lead to. If there are more than `most` hypotheses, those of low weight are resampled such that all sums
stay unbiased (Fearnhead & Clifford 2003); otherwise the posterior is exact. If the true automaton is given, its
hypothesis is always kept at its own weight; resampling might lose it, and then all others, as they contradict the text.
Not modelled is the rejection of about one automaton in nine after drawing: fewer than four reachable states, or two
states that accept the same strings.

P  hypotheses      S  states      V  symbols      A  possible numbers of symbols
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

#: state → symbol → the next state; the first state is where strings begin
Automaton = list[dict[int, int]]

EDGES = 3  # maximum number out of a state
FEWEST = 4  # minimum number of states and of symbols
TINY = 1e-12  # weight below which a hypothesis is dropped


class Law:
    """The sums over unknown quantities, as tables of logarithms."""

    def __init__(self, vocab: int, nodes: int, length: int) -> None:
        self.vocab, self.nodes = vocab, nodes
        met = np.arange(nodes + 1)
        counts = np.meshgrid(met, met, met, indexing="ij")
        sizes_A = np.arange(FEWEST, vocab + 1.0)
        states = np.arange(FEWEST, nodes + 1.0)
        self.sizes_A = sizes_A
        by_states = _spread(counts, states - 1)
        #: [s, n₁, n₂, n₃]
        self.states = np.stack(
            [_sum(by_states + _log(_falling(states - 1, max(s - 1, 0)) * (states >= s))) for s in range(nodes + 1)]
        )
        self.by_size = _spread(counts, sizes_A)
        edges, left = np.arange(1.0, EDGES + 1), np.arange(length + 2)
        terms = np.stack([_log(_falling(edges, k)) - left[:, None] * np.log(edges) for k in range(EDGES + 1)])
        #: [k, n]: the sum over edges, and the expected number of unknown edges
        self.edges = _sum(terms)
        more = np.maximum(edges - np.arange(EDGES + 1)[:, None, None], 0)
        self.more = (np.exp(terms - self.edges[..., None]) * more).sum(axis=-1)

    @cache  # noqa: B019 (a law lives as long as what was read by it)
    def symbols(self, seen: int) -> tuple[np.ndarray, np.ndarray]:
        """[n₁, n₂, n₃, A] if so many symbols were seen, and the sum over A."""
        log_weights = self.by_size + _log(_falling(self.sizes_A, seen) * (self.sizes_A >= seen))
        return log_weights, _sum(log_weights)


def _falling(x: np.ndarray, k: int) -> np.ndarray:
    """x (x − 1) … of k factors."""
    product: np.ndarray = np.prod([np.maximum(x - i, 0) for i in range(k)], axis=0) * np.ones_like(x)
    return product


def _log(x: np.ndarray) -> np.ndarray:
    with np.errstate(divide="ignore"):
        log_x: np.ndarray = np.log(x)
    return log_x


def _sum(terms: np.ndarray) -> np.ndarray:
    log_sum: np.ndarray = np.logaddexp.reduce(terms, axis=-1)
    return log_sum


def _spread(counts: Sequence[np.ndarray], x: np.ndarray) -> np.ndarray:
    """log w(x) for all counts; x is 3 at least, so that no factor is 0."""
    log_w: np.ndarray = -sum(count[..., None] * np.log(x - j) for j, count in enumerate(counts))
    return log_w


class Posterior:
    def __init__(self, law: Law, most: int, draw: np.random.Generator, automaton: Automaton | None = None) -> None:
        self.law, self.most, self.draw, self.automaton = law, most, draw, automaton
        self.state, self.numbers, self.own = 0, {0: 0}, 0  # of the true automaton; its index among the hypotheses
        self.to_PSV = np.full((1, law.nodes, law.vocab), -1, dtype=np.int8)
        self.known_PS = np.zeros((1, law.nodes), dtype=np.int8)
        self.left_PS = np.zeros((1, law.nodes), dtype=np.int16)
        self.met_P = np.ones(1, dtype=int)
        self.at_P = np.zeros(1, dtype=int)
        self.edges_P = np.zeros(1)  # log of the product over states
        self.kept_P = np.zeros(1)  # log of the resampling factor of each hypothesis
        self.seen_V = np.zeros(law.vocab, dtype=bool)

    def begin(self) -> None:
        """Start a string in the first state."""
        self.at_P, self.state = np.zeros(len(self.at_P), dtype=int), 0

    def take(self, symbol: int) -> None:
        """Follow a symbol: along its edge if known, else to every state that it may lead to."""
        rows = np.arange(len(self.at_P))
        self.seen_V[symbol] = True
        to_P = self.to_PSV[rows, self.at_P, symbol].astype(int)
        old = np.flatnonzero(to_P >= 0)
        new = np.flatnonzero((to_P < 0) & (self.known_PS[rows, self.at_P] < EDGES))
        free = np.arange(self.law.nodes) <= self.met_P[new, None]  # one unvisited state represents all of them
        free[np.arange(len(new)), self.at_P[new]] = False
        leads = self.to_PSV[new, self.at_P[new]]
        row, column = np.nonzero(leads >= 0)
        free[row, leads[row, column]] = False
        row, branch_to = np.nonzero(free)
        parent, to = np.concatenate([old, new[row]]), np.concatenate([to_P[old], branch_to])
        branched = np.arange(len(parent)) >= len(old)
        at, law = self.at_P[parent], self.law
        known, left = self.known_PS[parent, at].astype(int), self.left_PS[parent, at].astype(int)
        edges = self.edges_P[parent] + law.edges[known + branched, left + 1] - law.edges[known, left]
        met = np.maximum(self.met_P[parent], to + 1)
        counts = tuple(count[parent] + (branched & (known == j)) for j, count in enumerate(self._counts()))
        own = self._follow(symbol, parent, to)
        chosen, kept = self._choose(edges + self.kept_P[parent] + self._log_sums(met, counts), own)
        self.own = int(np.searchsorted(chosen, own))
        parent, to, branched, at = parent[chosen], to[chosen], branched[chosen], at[chosen]
        self.edges_P, self.met_P, self.at_P = edges[chosen], met[chosen], to
        self.kept_P = self.kept_P[parent] + kept
        self.to_PSV, self.known_PS, self.left_PS = (held[parent] for held in (self.to_PSV, self.known_PS, self.left_PS))
        rows = np.arange(len(parent))
        self.left_PS[rows, at] += 1
        self.known_PS[rows, at] += branched
        self.to_PSV[rows[branched], at[branched], symbol] = to[branched]

    def _follow(self, symbol: int, parent: np.ndarray, to: np.ndarray) -> int:
        """The index of the true automaton among the hypotheses after the symbol; -1 if it is not given."""
        if self.automaton is None:
            return -1
        self.state = self.automaton[self.state][symbol]
        number = self.numbers.setdefault(self.state, len(self.numbers))
        return int(np.flatnonzero((parent == self.own) & (to == number))[0])

    def _choose(self, log_weights: np.ndarray, own: int) -> tuple[np.ndarray, np.ndarray]:
        """The hypotheses to keep, and the log of the factor on the weight of each."""
        weights = np.exp(log_weights - log_weights.max())
        weights /= weights.sum()
        chosen = np.flatnonzero((weights > TINY) | (np.arange(len(weights)) == own))
        if len(chosen) <= self.most:
            return chosen, np.zeros(len(chosen))
        weights = weights[chosen]
        # `least` is the weight from which a hypothesis is kept for certain: Σ min(weight / least, 1) = `most`.
        heaviest = np.sort(weights)[::-1]
        rest = np.cumsum(heaviest[::-1])[::-1][: self.most]
        candidates = rest / (self.most - np.arange(self.most))
        least = candidates[np.flatnonzero(heaviest[: self.most] <= candidates)[0]]
        upto = np.cumsum(np.minimum(weights / least, 1)) + self.draw.random()
        picked = np.floor(upto) > np.floor(np.concatenate([[upto[0] - min(weights[0] / least, 1)], upto[:-1]]))
        certain = chosen == own
        picked |= certain
        more = np.where(certain, 1, np.maximum(least / weights, 1))
        return chosen[picked], np.log(more[picked])

    def _counts(self) -> tuple[np.ndarray, ...]:
        return tuple((self.known_PS >= j).sum(axis=1) for j in range(1, EDGES + 1))

    def _log_sums(self, met: np.ndarray, counts: tuple[np.ndarray, ...]) -> np.ndarray:
        place = (met, *counts)
        log_sums: np.ndarray = self.law.states[place] + self.law.symbols(int(self.seen_V.sum()))[1][counts]
        return log_sums

    def allowed(self) -> np.ndarray:
        """The probability of every symbol that the present state allows it."""
        law, rows, counts, seen = self.law, np.arange(len(self.at_P)), self._counts(), int(self.seen_V.sum())
        log_weights = self.edges_P + self.kept_P + self._log_sums(self.met_P, counts)
        weight_P = np.exp(log_weights - log_weights.max())
        known_P = self.known_PS[rows, self.at_P].astype(int)
        more_P = law.more[known_P, self.left_PS[rows, self.at_P]]
        of_size_PA = law.symbols(seen)[0][counts]
        of_size_PA = np.exp(of_size_PA - _sum(of_size_PA)[:, None]) / (law.sizes_A - known_P[:, None])
        one_seen_P = of_size_PA.sum(axis=1)
        one_new_P = (of_size_PA * np.maximum(law.sizes_A - seen, 0)).sum(axis=1) / max(law.vocab - seen, 1)
        unknown_PV = np.where(self.seen_V, one_seen_P[:, None], one_new_P[:, None]) * more_P[:, None]
        allowed_PV = np.where(self.to_PSV[rows, self.at_P] >= 0, 1.0, unknown_PV)
        allowed_V: np.ndarray = weight_P @ allowed_PV / weight_P.sum()
        return allowed_V


def read_text(
    law: Law, tokens: Sequence[int], most: int, draw: np.random.Generator, automaton: Automaton
) -> list[tuple[int, float]]:
    """After every token, the symbol most probably allowed next, and that probability. A token that is not a symbol ends
    a string."""
    held, predictions = Posterior(law, most, draw, automaton), []
    for token in tokens:
        held.take(token) if token < law.vocab else held.begin()
        allowed_V = held.allowed()
        predictions.append((int(allowed_V.argmax()), float(allowed_V.max())))
    return predictions
