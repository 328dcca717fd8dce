"""Languages learnt in context: every sequence has a random law of its own, to be inferred from the sequence alone.

markov     a Markov chain whose transition matrix is drawn per sequence, each row from a Dirichlet with all ones. The
           target is the token that has followed the current one most often so far, the best possible guess (Edelman et
           al. 2024, arXiv:2402.11004; Akyürek et al. 2024, arXiv:2401.12973)
regbench   strings of a random automaton, separated by bars. Right is any symbol that may come next (RegBench, Akyürek
           et al. 2024). Automata have 4 to `nodes` states, 4 to `vocab` symbols, one to three edges out of a state with
           different symbols to different states other than itself; states that no string reaches are dropped, and so
           are automata in which two states accept the same strings. Strings have 1 to `string` symbols.

Both train on every next token.

    N  sequences      T  tokens of a sequence      K  right answers of one place, at most
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from plait.tasks.mqar import TRAIN_SIZES
from plait.tasks.task import IGNORE, Examples, Task

EDGES = 3  # out of a state, at most
FEWEST = 4  # states, and symbols

#: state → symbol → the next state; the first state is where strings begin
Automaton = list[dict[int, int]]


@dataclass(frozen=True)
class Markov(Task):
    """A Markov chain with a random transition matrix per sequence: which token is most likely next?"""

    name: ClassVar[str] = "markov"
    skill: ClassVar[str] = "learn a Markov chain from one sequence"
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (64, 128, 256, 512),
        "vocab": (5, 10, 20),
        "train_size": TRAIN_SIZES,
    }

    vocab: int = 10
    length: int = 128

    @property
    def layout(self) -> dict[str, int]:
        return {"token": self.vocab}

    def check(self) -> None:
        self.require(self.vocab >= 2, "vocab", "at least 2")
        self.require(self.length >= 4 * self.vocab, "length", f"at least four times the vocabulary, {4 * self.vocab}")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        law_NVV = stream.exponential(size=(count, self.vocab, self.vocab))
        upto_NVV = np.cumsum(law_NVV / law_NVV.sum(axis=-1, keepdims=True), axis=-1)
        rows = np.arange(count)
        tokens_NT = np.empty((count, self.length + 1), dtype=self.dtype)
        tokens_NT[:, 0] = stream.integers(self.vocab, size=count)
        for t in range(1, self.length + 1):
            lots_N1 = stream.random((count, 1))
            tokens_NT[:, t] = (lots_N1 >= upto_NVV[rows, tokens_NT[:, t - 1], :-1]).sum(axis=1)
        inputs_NT = np.ascontiguousarray(tokens_NT[:, :-1])
        return Examples(inputs_NT, np.ascontiguousarray(tokens_NT[:, 1:]) if training else self._likeliest(inputs_NT))

    def _likeliest(self, inputs_NT: np.ndarray) -> np.ndarray:
        """The most frequent successor so far of each token; nothing where there is none, or two are as frequent."""
        count, rows = len(inputs_NT), np.arange(len(inputs_NT))
        seen_NVV = np.zeros((count, self.vocab, self.vocab), dtype=np.int32)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        for t in range(self.length):
            if t:
                seen_NVV[rows, inputs_NT[:, t - 1], inputs_NT[:, t]] += 1
            after_NV = seen_NVV[rows, inputs_NT[:, t]]
            most_N = after_NV.max(axis=1)
            only_N = (most_N > 0) & ((after_NV == most_N[:, None]).sum(axis=1) == 1)
            targets_NT[only_N, t] = after_NV[only_N].argmax(axis=1)
        return targets_NT

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """By going through the text before, place by place."""
        if len(inputs) != self.length or any(token not in range(self.vocab) for token in inputs):
            return None
        targets = []
        for at, token in enumerate(inputs):
            followed = [inputs[i + 1] for i in range(at) if inputs[i] == token]
            times = {next_token: followed.count(next_token) for next_token in followed}
            best = [next_token for next_token, n in times.items() if n == max(times.values())]
            targets.append(best[0] if len(best) == 1 else IGNORE)
        return targets


@dataclass(frozen=True)
class RegBench(Task):
    """Strings of an automaton drawn per sequence: which symbol may come next?"""

    name: ClassVar[str] = "regbench"
    skill: ClassVar[str] = "learn a regular language from one sequence"
    always_answerable: ClassVar[bool] = False  # a state that was not met before
    ceiling_by_training: ClassVar[bool] = False
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {
        "length": (128, 256, 512),
        "nodes": (6, 12),
        "train_size": TRAIN_SIZES,
    }

    vocab: int = 18
    length: int = 256
    nodes: int = 12
    string: int = 49

    @property
    def layout(self) -> dict[str, int]:
        return {"symbol": self.vocab, "bar": 1}

    def check(self) -> None:
        self.require(self.vocab >= FEWEST, "vocab", f"at least {FEWEST}")
        self.require(self.nodes >= FEWEST, "nodes", f"at least {FEWEST}")
        self.require(self.string >= 1, "string", "at least 1")
        self.require(self.length >= 4, "length", "at least 4")

    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        inputs_NT = np.empty((count, self.length), dtype=self.dtype)
        targets_NT = np.full_like(inputs_NT, IGNORE)
        allowed_NTK = np.full((count, self.length, EDGES), IGNORE, dtype=self.dtype)
        for row in range(count):
            tokens, may_follow = self._text(stream, self.automaton(stream))
            inputs_NT[row] = tokens[:-1]
            for at, symbols in enumerate(may_follow):
                if training or symbols:
                    targets_NT[row, at] = tokens[at + 1]
                    allowed_NTK[row, at, : len(symbols)] = symbols
        return Examples(inputs_NT, targets_NT, None if training else allowed_NTK)

    def ceiling(self, train: Examples, test: Examples) -> float:
        """An estimate of the best accuracy, not a bound. It is that of a reader who tells states apart by the symbols
        that may follow them: where the same symbols were right earlier in the sequence, it has seen one of them and is
        right. The first time it guesses among the symbols of the whole sequence, as if states drew theirs independently
        of each other. One that mistakes two states for one does worse, and of few tokens everyone does: at the quick
        probe's 64, where this is 0.95, the best that knows the law by which automata are drawn has 0.91
        (`benchmarks/regbench_reader.py`)."""
        assert test.allowed_NTK is not None  # drawn for evaluation
        right_NTK = np.sort(test.allowed_NTK, axis=-1)
        scored = test.targets_NT != IGNORE
        kinds, kind_P = np.unique(right_NTK[scored], axis=0, return_inverse=True)
        row_P = np.nonzero(scored)[0]
        _, first = np.unique(row_P * len(kinds) + kind_P.reshape(-1), return_index=True)
        symbols_N = np.array([len(set(row.tolist()) - {self.ids("bar").start}) for row in test.inputs_NT])
        right_P = (right_NTK[scored] != IGNORE).sum(axis=-1)
        chance_P = np.ones(len(row_P))
        chance_P[first] = np.minimum(1.0, right_P[first] / symbols_N[row_P[first]])
        return float(chance_P.mean())

    def automaton(self, stream: np.random.Generator) -> Automaton:
        """Drawn until its states are all different."""
        while True:
            states = int(stream.integers(FEWEST, self.nodes + 1))
            symbols = stream.permutation(self.vocab)[: stream.integers(FEWEST, self.vocab + 1)]
            found: Automaton = []
            for state in range(states):
                edges = min(int(stream.integers(1, EDGES + 1)), states - 1)
                others = [other for other in range(states) if other != state]
                to = stream.permutation(others)[:edges]
                by = stream.permutation(symbols)[:edges]
                found.append({int(symbol): int(other) for symbol, other in zip(by, to, strict=True)})
            found = reachable(found)
            if len(found) >= FEWEST and len(set(classes(found))) == len(found):
                return found

    def _text(self, stream: np.random.Generator, automaton: Automaton) -> tuple[list[int], list[list[int]]]:
        """`length + 1` tokens, and the symbols that may follow each but the last; none before a bar."""
        tokens: list[int] = []
        may_follow: list[list[int]] = []
        bar = self.ids("bar").start
        while len(tokens) <= self.length:
            state = 0
            for left in range(int(stream.integers(1, self.string + 1)), 0, -1):
                choices = list(automaton[state])
                if tokens:
                    may_follow.append(choices)
                symbol = choices[int(stream.integers(len(choices)))]
                tokens.append(symbol)
                state = automaton[state][symbol]
                if left == 1:
                    may_follow.append([])
            tokens.append(bar)
        return tokens[: self.length + 1], may_follow[: self.length]

    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """The next symbol of the text: the input does not contain the automaton, so one right answer per place is
        known, and none for the last."""
        bar = self.ids("bar").start
        if len(inputs) != self.length or any(token not in range(bar + 1) for token in inputs):
            return None
        return [following if following != bar else IGNORE for following in inputs[1:]] + [IGNORE]

    def valid(self, inputs: Sequence[int], targets: Sequence[int]) -> bool:
        found = self.answers([int(token) for token in inputs])
        return found is not None and found[:-1] == [int(token) for token in targets[:-1]]


def reachable(automaton: Automaton) -> Automaton:
    """The states that some string leads to, renumbered in the order in which they are met."""
    order, at = [0], 0
    while at < len(order):
        order += [to for to in automaton[order[at]].values() if to not in order]
        at += 1
    return [{symbol: order.index(to) for symbol, to in automaton[state].items()} for state in order]


def classes(automaton: Automaton) -> list[int]:
    """States that accept the same strings have one number (Moore's algorithm; every state accepts)."""
    found = [0] * len(automaton)
    while True:
        signatures = [
            (found[state], tuple(sorted((symbol, found[to]) for symbol, to in edges.items())))
            for state, edges in enumerate(automaton)
        ]
        numbers = {signature: number for number, signature in enumerate(dict.fromkeys(signatures))}
        finer = [numbers[signature] for signature in signatures]
        if len(set(finer)) == len(set(found)):
            return found
        found = finer
