"""How much of RegBench can be known: two programs that read its sequences as a model does.

    python benchmarks/regbench_reader.py [--sequences 100] [--hypotheses 2000 …] [--set vocab=8 length=64 …]

after the same piece   the symbol that came most often after the longest piece of the present string that came before
of the posterior       knows the law by which automata are drawn, and nothing of the one at hand: it names the symbol
                       that is most probably allowed (`plait.tasks.automaton_posterior`). No program does better, but
                       for the few automata that the law refuses, and if enough hypotheses are kept: more of them must
                       change nothing, and the probability of what it names must be how often that is right.

`plait.tasks.regbench.MEASURED` has the accuracies of the second, which is what a model's is compared with.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from plait.core.random_streams import stream
from plait.tasks import IGNORE, Examples, baseline
from plait.tasks.automaton_posterior import Law, read_text
from plait.tasks.regbench import RegBench

QUICK = ("vocab=8", "length=64", "nodes=6", "string=12")
LENGTHS = (16, 32, 64, 128, 256, 512)
TOLD = 25  # sequences after which the figures so far are told


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


def told(name: str, drawn: Examples, read: list[list[tuple[int, float]]], seconds: float) -> None:
    """Accuracy up to every length, its standard error over sequences, and the probability that the reader gave."""
    assert drawn.allowed_NTK is not None
    count = len(read)
    read_NT2 = np.array(read)
    unread_NT = read_NT2[..., 0] < 0  # no hypothesis left, however many there were
    scored_NT = (drawn.targets_NT[:count] != IGNORE) & ~unread_NT
    right_NT = (read_NT2[..., :1] == drawn.allowed_NTK[:count]).any(axis=-1) & scored_NT
    parts = []
    for length in (length for length in LENGTHS if length <= scored_NT.shape[1]):
        right_N, of_N = right_NT[:, :length].sum(axis=1), scored_NT[:, :length].sum(axis=1)
        mean = right_N.sum() / of_N.sum()
        error = (right_N - mean * of_N).std(ddof=1) / of_N.mean() / np.sqrt(count)
        probability = read_NT2[:, :length, 1][scored_NT[:, :length]].mean()
        parts.append(f"{length}: {mean:.4f} ± {error:.4f} (told {probability:.4f})")
    lost = f", of which {unread_NT.any(axis=1).sum()} not to their end" if unread_NT.any() else ""
    print(f"{name}, {count} sequences{lost}, {seconds / count:.2f} CPU s each: {'; '.join(parts)}", flush=True)


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--sequences", type=int, default=100)
    asked.add_argument("--hypotheses", type=int, nargs="*", default=[2000])
    asked.add_argument("--set", nargs="*", default=QUICK, dest="settings")
    given = asked.parse_args()
    task = baseline("regbench").with_settings(dict(pair.split("=") for pair in given.settings))
    assert isinstance(task, RegBench)
    drawn = task.generate(stream("what can be known"), given.sequences, training=False)
    texts = drawn.inputs_NT.tolist()
    print(task.label)
    began = time.process_time()
    pieces = [[(symbol, np.nan) for symbol in after_the_same_piece(task, text)] for text in texts]
    told("after the same piece", drawn, pieces, time.process_time() - began)
    law = Law(task.vocab, task.nodes, task.length)
    for hypotheses in given.hypotheses:
        began, draw = time.process_time(), np.random.default_rng(0)
        read: list[list[tuple[int, float]]] = []
        for text in texts:
            read.append(read_text(law, text, hypotheses, draw))
            if len(read) % TOLD == 0 or len(read) == len(texts):
                name = f"of the posterior, {hypotheses:,} hypotheses"
                told(name, drawn, read, time.process_time() - began)


if __name__ == "__main__":
    main()
