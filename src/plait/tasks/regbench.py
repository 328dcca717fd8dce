"""RegBench: strings of an automaton that is drawn per sequence (Akyürek et al. 2024, arXiv:2401.12973).

Strings are separated by bars, and any symbol that may come next is right. Automata have 4 to `nodes` states, 4 to
`vocab` symbols, one to three edges out of a state with different symbols to different states other than itself; states
that no string reaches are dropped, and so are automata in which two states accept the same strings. Strings have 1 to
`string` symbols. Training is on every next token.

A reader cannot know the symbols of a state before visiting it, nor always which state it is in, so the best possible
accuracy is below 1: `knowable`.

    N  sequences      T  tokens of a sequence      K  maximum number of right answers at one position
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np

from plait.tasks.automaton_posterior import EDGES, FEWEST, Automaton, Law, read_text
from plait.tasks.mqar import TRAIN_SIZES
from plait.tasks.task import IGNORE, Examples, Task
from plait.tasks.task import stream as random_stream


@dataclass(frozen=True)
class RegBench(Task):
    """Strings of an automaton drawn per sequence: which symbol may come next?"""

    name: ClassVar[str] = "regbench"
    skill: ClassVar[str] = "learn a regular language from one sequence"
    always_answerable: ClassVar[bool] = False  # not in states that were not visited before
    ceiling_by_training: ClassVar[bool] = False
    revision: ClassVar[int] = 2  # revision 1 had the ceiling of a reader that knows its state
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
            tokens, may_follow = self.text(stream, self.automaton(stream))
            inputs_NT[row] = tokens[:-1]
            for at, symbols in enumerate(may_follow):
                if training or symbols:
                    targets_NT[row, at] = tokens[at + 1]
                    allowed_NTK[row, at, : len(symbols)] = symbols
        return Examples(inputs_NT, targets_NT, None if training else allowed_NTK)

    def ceiling(self, train: Examples, test: Examples) -> float:
        """The accuracy of a Bayes-optimal reader that knows the distribution of automata, but not the automaton."""
        return knowable(self.vocab, self.nodes, self.string, self.length)

    def automaton(self, stream: np.random.Generator) -> Automaton:
        """Draw an automaton, until all its states are distinguishable."""
        while True:
            states = int(stream.integers(FEWEST, self.nodes + 1))
            symbols = stream.permutation(self.vocab)[: stream.integers(FEWEST, self.vocab + 1)]
            automaton: Automaton = []
            for state in range(states):
                edges = min(int(stream.integers(1, EDGES + 1)), states - 1)
                others = [other for other in range(states) if other != state]
                to = stream.permutation(others)[:edges]
                by = stream.permutation(symbols)[:edges]
                automaton.append({int(symbol): int(other) for symbol, other in zip(by, to, strict=True)})
            automaton = reachable(automaton)
            if len(automaton) >= FEWEST and len(set(classes(automaton))) == len(automaton):
                return automaton

    def text(self, stream: np.random.Generator, automaton: Automaton) -> tuple[list[int], list[list[int]]]:
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
        """The next symbol of the text: the input does not contain the automaton, so one right answer per position is
        known, and none for the last."""
        bar = self.ids("bar").start
        if len(inputs) != self.length or any(token not in range(bar + 1) for token in inputs):
            return None
        return [following if following != bar else IGNORE for following in inputs[1:]] + [IGNORE]

    def valid(self, inputs: Sequence[int], targets: Sequence[int]) -> bool:
        answers = self.answers([int(token) for token in inputs])
        return answers is not None and answers[:-1] == [int(token) for token in targets[:-1]]


def reachable(automaton: Automaton) -> Automaton:
    """The states that some string leads to, renumbered in the order in which they are met."""
    order, at = [0], 0
    while at < len(order):
        order += [to for to in automaton[order[at]].values() if to not in order]
        at += 1
    return [{symbol: order.index(to) for symbol, to in automaton[state].items()} for state in order]


def classes(automaton: Automaton) -> list[int]:
    """States that accept the same strings have one number (Moore's algorithm; every state accepts)."""
    class_of = [0] * len(automaton)
    while True:
        signatures = [
            (class_of[state], tuple(sorted((symbol, class_of[to]) for symbol, to in edges.items())))
            for state, edges in enumerate(automaton)
        ]
        numbers = {signature: number for number, signature in enumerate(dict.fromkeys(signatures))}
        finer = [numbers[signature] for signature in signatures]
        if len(set(finer)) == len(set(class_of)):
            return class_of
        class_of = finer


#: (vocab, nodes, string) → length → the best accuracy, to ± 0.003: `benchmarks/regbench_reader.py` measured it.
MEASURED: dict[tuple[int, int, int], dict[int, float]] = {
    (8, 6, 12): {16: 0.753, 32: 0.844, 64: 0.912, 128: 0.954, 256: 0.977, 512: 0.989},
    (18, 6, 49): {16: 0.690, 32: 0.820, 64: 0.904, 128: 0.952, 256: 0.976, 512: 0.988},
    (18, 12, 49): {16: 0.618, 32: 0.743, 64: 0.845, 128: 0.914, 256: 0.956, 512: 0.977},
}
#: For other settings, so many sequences are read up to this length: takes seconds, to ± 0.01.
SEQUENCES, HYPOTHESES, READ = 32, 1000, 512
READABLE = 16  # states, and twice as many symbols: beyond that the tables get large and the bound is 1


@cache
def knowable(vocab: int, nodes: int, string: int, length: int) -> float:
    """The accuracy of the best reader. Its mistakes are at the beginning of a sequence, whatever its length, so their
    number is measured up to some lengths; none are assumed beyond the last."""
    if nodes > READABLE or vocab > 2 * READABLE:
        return 1.0
    known = MEASURED.get((vocab, nodes, string), {})
    if not known or length < min(known):
        task = RegBench(vocab=vocab, nodes=nodes, string=string, length=min(length, READ))
        known = {task.length: float(read(task, SEQUENCES, HYPOTHESES).accuracy_T[-1])}
    mistakes = float(np.interp(length, list(known), [(1 - share) * at for at, share in known.items()]))
    return 1 - mistakes / length


@dataclass(frozen=True)
class Reading:
    """The best reader's accuracy up to every length of the task."""

    accuracy_T: np.ndarray
    error_T: np.ndarray  # standard error over sequences
    probability_T: np.ndarray  # mean probability of its answers: its accuracy, if enough hypotheses are kept


def read(task: RegBench, sequences: int, hypotheses: int) -> Reading:
    """Read so many sequences, the same for any number of hypotheses."""
    law = Law(task.vocab, task.nodes, task.length)
    draw, lots = (random_stream("readers of regbench", task.as_dict(), part) for part in ("sequences", "hypotheses"))
    scored_NT, right_NT, probability_NT = (np.zeros((sequences, task.length)) for _ in range(3))
    for row in range(sequences):
        automaton = task.automaton(draw)
        tokens, may_follow = task.text(draw, automaton)
        predictions = read_text(law, tokens[:-1], hypotheses, lots, automaton)
        for at, ((symbol, probability), allowed) in enumerate(zip(predictions, may_follow, strict=True)):
            if allowed:
                scored_NT[row, at], right_NT[row, at], probability_NT[row, at] = 1, symbol in allowed, probability
    of_NT, upto_NT = scored_NT.cumsum(axis=1), right_NT.cumsum(axis=1)
    of_T = np.maximum(of_NT.sum(axis=0), 1)
    accuracy_T = upto_NT.sum(axis=0) / of_T
    error_T = (upto_NT - accuracy_T * of_NT).std(axis=0, ddof=1) * np.sqrt(sequences) / of_T
    return Reading(accuracy_T, error_T, probability_NT.cumsum(axis=1).sum(axis=0) / of_T)
