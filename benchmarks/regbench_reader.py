"""How much of RegBench can be known: two programs that read its sequences as a model does.

    python benchmarks/regbench_reader.py [--sequences 40] [--particles 3000 30000] [--set vocab=8 …]

after the same piece     the symbol that came most often after the longest piece of the present string that came before
of the likely automata   knows the law by which automata are drawn, and nothing of the one at hand: a particle filter
                         over automata of which every edge is drawn when a string first takes it (Gordon et al. 1993).
                         It names the symbol that is allowed with the largest probability. With many particles no
                         program does better, but for what the law refuses: automata with two states that accept the
                         same strings, or with fewer than four that are reached.

A control is measured by what these reach (`plait.tasks.controls`); `RegBench.ceiling` is what a reader would have that
knows at every place which state it is in, and is too high for short sequences.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from plait.tasks import IGNORE, baseline
from plait.tasks.language import EDGES, FEWEST, RegBench
from plait.tasks.task import stream

QUICK = ("vocab=8", "length=64", "nodes=6", "string=12")


def after_the_same_piece(task: RegBench, tokens: list[int]) -> list[int]:
    bar, found = task.ids("bar").start, []
    for at in range(len(tokens)):
        begins = max((i for i in range(at + 1) if tokens[i] == bar), default=0)
        symbols = [token for token in tokens[: at + 1] if token != bar]
        for first in range(begins, at + 1):
            piece = tokens[first : at + 1]
            ends = range(len(piece) - 1, at)
            came = [tokens[i + 1] for i in ends if tokens[i + 1] != bar and tokens[i + 1 - len(piece) : i + 1] == piece]
            if came:
                symbols = came
                break
        found.append(max(symbols, key=symbols.count) if symbols else 0)
    return found


class Particles:
    """Automata that might be at hand, each as far as the strings so far have needed it.

    P particles, S states, V symbols
    """

    def __init__(self, task: RegBench, count: int, draw: np.random.Generator) -> None:
        self.task, self.draw, self.all = task, draw, np.arange(count)
        self.states_P = draw.integers(FEWEST, task.nodes + 1, count)
        self.symbols_P = draw.integers(FEWEST, task.vocab + 1, count)
        self.edges_PS = np.zeros((count, task.nodes), dtype=int)  # out of a state; 0: not drawn yet
        self.known_PS = np.zeros((count, task.nodes), dtype=int)  # of them drawn
        self.to_PSV = np.full((count, task.nodes, task.vocab), -1, dtype=np.int8)
        self.log_weight_P = np.zeros(count)
        self.seen_V = np.zeros(task.vocab, dtype=bool)
        self.begin()

    def begin(self) -> None:
        """A string begins in the first state."""
        self.enter(np.zeros(len(self.all), dtype=int))

    def enter(self, state_P: np.ndarray) -> None:
        self.at_P = state_P
        new = np.flatnonzero(self.edges_PS[self.all, state_P] == 0)
        edges = np.minimum(self.draw.integers(1, EDGES + 1, len(new)), self.states_P[new] - 1)
        self.edges_PS[new, state_P[new]] = edges

    def undrawn(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Edges of the present state and those drawn; the chance that one of the others has a certain symbol, for a
        symbol that was seen and for one that was not."""
        edges_P, known_P = (which[self.all, self.at_P] for which in (self.edges_PS, self.known_PS))
        seen, left_P = int(self.seen_V.sum()), np.maximum(self.symbols_P - known_P, 1)
        new_P = np.maximum(self.symbols_P - seen, 0) / left_P / max(self.task.vocab - seen, 1)
        return edges_P, known_P, 1 / left_P, new_P

    def take(self, symbol: int) -> None:
        """Weigh by how likely the symbol was, draw where its edge leads where it is new, and go there."""
        edges_P, known_P, seen_P, new_P = self.undrawn()
        drawn_P = self.to_PSV[self.all, self.at_P, symbol] >= 0
        chance_P = (edges_P - known_P) / edges_P * (seen_P if self.seen_V[symbol] else new_P)
        self.log_weight_P += np.log(np.maximum(np.where(drawn_P, 1 / edges_P, chance_P), 1e-300))
        new = np.flatnonzero(~drawn_P & (known_P < edges_P))
        free = np.arange(self.task.nodes) < self.states_P[new, None]
        free[np.arange(len(new)), self.at_P[new]] = False
        for to in self.to_PSV[new, self.at_P[new]].T:
            taken = np.flatnonzero(to >= 0)
            free[taken, to[taken]] = False
        self.to_PSV[new, self.at_P[new], symbol] = (self.draw.random(free.shape) * free).argmax(axis=1)
        self.known_PS[new, self.at_P[new]] += 1
        self.seen_V[symbol] = True
        to_P = np.maximum(self.to_PSV[self.all, self.at_P, symbol], 0).astype(int)
        self.at_P = to_P
        self.resample()
        self.enter(self.at_P)

    def resample(self) -> None:
        weight_P = self.weights()
        if 1 / (weight_P**2).sum() > len(self.all) / 2:
            return
        lots = (self.draw.random() + self.all) / len(self.all)
        kept = np.minimum(np.searchsorted(np.cumsum(weight_P), lots), len(self.all) - 1)
        for name in ("states_P", "symbols_P", "edges_PS", "known_PS", "to_PSV", "at_P"):
            setattr(self, name, getattr(self, name)[kept])
        self.log_weight_P = np.zeros(len(self.all))

    def weights(self) -> np.ndarray:
        weight_P: np.ndarray = np.exp(self.log_weight_P - self.log_weight_P.max())
        return weight_P / weight_P.sum()

    def likeliest(self) -> int:
        """The symbol that the present state allows with the largest probability."""
        edges_P, known_P, seen_P, new_P = self.undrawn()
        unknown_PV = np.where(self.seen_V, seen_P[:, None], new_P[:, None]) * (edges_P - known_P)[:, None]
        allowed_PV = np.where(self.to_PSV[self.all, self.at_P] >= 0, 1.0, unknown_PV)
        return int((self.weights() @ allowed_PV).argmax())


def of_the_likely_automata(task: RegBench, tokens: list[int], particles: int, draw: np.random.Generator) -> list[int]:
    held, bar, found = Particles(task, particles, draw), task.ids("bar").start, []
    for token in tokens:
        held.begin() if token == bar else held.take(token)
        found.append(held.likeliest())
    return found


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--sequences", type=int, default=40)
    asked.add_argument("--particles", type=int, nargs="*", default=[3000, 30_000])
    asked.add_argument("--set", nargs="*", default=QUICK, dest="settings")
    given = asked.parse_args()
    task = baseline("regbench").with_settings(dict(pair.split("=") for pair in given.settings))
    assert isinstance(task, RegBench)
    drawn = task.generate(stream("readers of regbench"), given.sequences, training=False)
    draw = np.random.default_rng(0)
    assert drawn.allowed_NTK is not None

    def told(name: str, answers: list[list[int]], began: float) -> None:
        scored = drawn.targets_NT != IGNORE
        right = (np.array(answers)[..., None] == drawn.allowed_NTK).any(axis=-1) & scored
        shares = right.sum(axis=1) / scored.sum(axis=1)
        error = shares.std(ddof=1) / np.sqrt(len(shares))
        took = (time.perf_counter() - began) / len(answers)
        print(f"{name}: {right.sum() / scored.sum():.3f} ± {error:.3f}, {took:.2f} s per sequence", flush=True)

    print(f"{task.label}, {given.sequences} sequences; RegBench.ceiling {task.ceiling(drawn, drawn):.3f}")
    began, texts = time.perf_counter(), drawn.inputs_NT.tolist()
    told("after the same piece", [after_the_same_piece(task, text) for text in texts], began)
    for particles in given.particles:
        began = time.perf_counter()
        answers = [of_the_likely_automata(task, text, particles, draw) for text in texts]
        told(f"of the likely automata, {particles:,} particles", answers, began)


if __name__ == "__main__":
    main()
