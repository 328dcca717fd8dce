"""For every task of the suites beside MAD's: a small model that was seen to solve it, and at which setting.

A score near chance says something about a mixer only where some model of that size solves the task. Accuracies are
means over two seeds or more of `benchmarks/controls.py` and `benchmarks/tracking.py` (results: `*-controls.md`,
`*-recall.md`, `*-tracking.md`). Below 0.95 of the ceiling a control does not solve its task, and is marked.
"""

from __future__ import annotations

from dataclasses import dataclass

SOLVED = 0.95  # of the ceiling


@dataclass(frozen=True)
class Control:
    model: str  # its sequence mixers
    setting: str
    accuracy: float
    ceiling: float = 1.0

    @property
    def solves(self) -> bool:
        return self.accuracy >= SOLVED * self.ceiling

    def __str__(self) -> str:
        """Short, for a table: the mixer's name and the accuracy, after "none" where that is no solution."""
        text = f"{self.model.split('[')[0].split()[0]} {self.accuracy:.2f}"
        return text if self.solves else f"none ({text})"


_LOOKING, _DEEP = "attn[canon=ab]", "attn x4"
CONTROLS: dict[str, Control] = {
    "parity": Control("rwkv7[neg_eigval]", "length=32", 1.0),
    "word-problem": Control("deltaproduct[steps=2]", "length=16 group=S3", 1.0),
    "modular-arithmetic": Control(_DEEP, "vocab=3 length=12", 0.996),
    "mqar": Control("deltanet x2", "vocab=64 length=64 pairs=8", 0.983),
    "forgetting-mqar": Control(f"{_LOOKING} x4", "vocab=64 length=64 pairs=8 updates=4", 0.993),
    "compositional-mqar": Control(f"{_LOOKING} x4", "vocab=96 length=48 side=2", 0.999),
    "palindrome": Control(f"{_LOOKING} x4", "vocab=8 length=24", 1.0),
    "stack": Control(f"{_LOOKING} x2", "vocab=8 length=48 stacks=4", 0.989),
    "phonebook": Control(f"{_LOOKING} x2", "vocab=64 length=32 digits=3", 0.992),
    "copy": Control(f"{_LOOKING} x2", "vocab=8 length=24", 1.0),
    "ngram-lookup": Control(f"{_LOOKING} x4", "vocab=10 length=24 n=3", 0.996),
    "markov": Control(f"{_LOOKING} x2", "vocab=5 length=64", 0.989),
    "regbench": Control(f"{_LOOKING} x4", "vocab=8 length=64 nodes=6 string=12", 0.858, 0.953),
    "depo": Control(f"{_LOOKING} x4", "vocab=128 length=32 hops=2 queries=4", 0.853),
    "mano": Control(_DEEP, "vocab=3 length=8 train_size=40000", 0.857),
}
