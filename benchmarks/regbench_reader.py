"""The best possible accuracy on RegBench: two programs that read its sequences as a model does.

    python benchmarks/regbench_reader.py [--sequences 100] [--hypotheses 1000 5000] [--set vocab=8 length=64 …]

after the same piece   the symbol that came most often after the longest piece of the present string that came before
of the posterior       knows the distribution of automata, but not the automaton: it predicts the symbol that is most
                       probably allowed (`plait.tasks.automaton_posterior`). This is optimal, apart from the automata
                       that are rejected after drawing, if enough hypotheses are kept: then more of them change
                       nothing, and the mean probability of its predictions equals its accuracy.

`plait.tasks.regbench.MEASURED` has the accuracies of the second, the ceiling for models.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from plait.tasks import IGNORE, baseline
from plait.tasks.regbench import RegBench, read
from plait.tasks.task import stream

QUICK = ("vocab=8", "length=64", "nodes=6", "string=12")
LENGTHS = (16, 32, 64, 128, 256, 512)


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


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--sequences", type=int, default=100)
    asked.add_argument("--hypotheses", type=int, nargs="*", default=[1000, 5000])
    asked.add_argument("--set", nargs="*", default=QUICK, dest="settings")
    given = asked.parse_args()
    task = baseline("regbench").with_settings(dict(pair.split("=") for pair in given.settings))
    assert isinstance(task, RegBench)
    drawn = task.generate(stream("readers of regbench"), given.sequences, training=False)
    assert drawn.allowed_NTK is not None
    pieces_NT = np.array([after_the_same_piece(task, text) for text in drawn.inputs_NT.tolist()])
    right_NT = (pieces_NT[..., None] == drawn.allowed_NTK).any(axis=-1)
    print(f"{task.label}, {given.sequences} sequences")
    print(f"after the same piece: {right_NT[drawn.targets_NT != IGNORE].mean():.4f}", flush=True)
    for hypotheses in given.hypotheses:
        began = time.process_time()
        found = read(task, given.sequences, hypotheses)
        parts = [
            f"{length}: {found.accuracy_T[length - 1]:.4f} ± {found.error_T[length - 1]:.4f} "
            f"(told {found.probability_T[length - 1]:.4f})"
            for length in LENGTHS
            if length <= task.length
        ]
        spent = (time.process_time() - began) / given.sequences
        print(f"of the posterior, {hypotheses:,} hypotheses, {spent:.2f} CPU s each: {'; '.join(parts)}", flush=True)


if __name__ == "__main__":
    main()
