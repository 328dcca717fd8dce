"""Controls: for every task of the suites other than MAD's, a small model that solves it, with its setting and training.

A score near chance is informative about a mixer only if some model of that size solves the task. Accuracies are
means over two seeds or more of `benchmarks/controls.py` and `benchmarks/tracking.py` (results: `*-controls.md`,
`*-recall.md`, `*-tracking.md`, `*-regbench.md`). Controls below 0.95 of the ceiling do not solve their task and
are marked. RegBench's ceiling is the accuracy of the Bayes-optimal reader (`plait.tasks.regbench`).
"""

from __future__ import annotations

from dataclasses import dataclass

SOLVED = 0.95  # of the ceiling


@dataclass(frozen=True)
class Control:
    model: str  # its sequence mixers
    setting: str
    recipe: str  # AdamW with cosine decay of the learning rate to 0
    accuracy: float
    ceiling: float = 1.0

    @property
    def solves(self) -> bool:
        return self.accuracy >= SOLVED * self.ceiling

    def __str__(self) -> str:
        """Short, for a table: the mixer's name and the accuracy, after "none" if it does not solve the task."""
        text = f"{self.model.split('[')[0].split()[0]} {self.accuracy:.2f}"
        return text if self.solves else f"none ({text})"


def _recipe(steps: int, batch: int, lr: float, more: str = "") -> str:
    return f"{steps:,} steps of {batch} sequences, rate {lr:g}{more}"


_LOOKING, _DEEP = "attn[canon=ab]", "attn x4"
_SHORT_FIRST = ", short prefixes first"
CONTROLS: dict[str, Control] = {
    "parity": Control("rwkv7[neg_eigval]", "length=32", _recipe(500, 32, 1e-2, _SHORT_FIRST), 1.0),
    "word-problem": Control("deltaproduct[steps=2]", "length=16 group=S3", _recipe(600, 64, 3e-3, _SHORT_FIRST), 1.0),
    "modular-arithmetic": Control(_DEEP, "vocab=5 length=12 train_size=100000", _recipe(20_000, 512, 1e-3), 0.991),
    "mqar": Control("deltanet x2", "vocab=64 length=64 pairs=8", _recipe(300, 32, 5e-3), 0.983),
    "forgetting-mqar": Control(f"{_LOOKING} x4", "vocab=64 length=64 pairs=8 updates=4", _recipe(825, 64, 3e-3), 0.993),
    "compositional-mqar": Control(f"{_LOOKING} x4", "vocab=96 length=48 side=2", _recipe(3000, 64, 1e-3), 0.999),
    "palindrome": Control(f"{_LOOKING} x4", "vocab=8 length=24", _recipe(1400, 64, 1e-3), 1.0),
    "stack": Control(f"{_LOOKING} x2", "vocab=8 length=48 stacks=4", _recipe(2800, 32, 3e-3), 0.989),
    "phonebook": Control(f"{_LOOKING} x2", "vocab=64 length=32 digits=3", _recipe(600, 32, 3e-3), 0.992),
    "copy": Control(f"{_LOOKING} x2", "vocab=8 length=24", _recipe(100, 32, 3e-3), 1.0),
    "ngram-lookup": Control(f"{_LOOKING} x4", "vocab=10 length=24 n=3", _recipe(3000, 64, 1e-3), 0.996),
    "markov": Control(f"{_LOOKING} x2", "vocab=5 length=64", _recipe(2400, 32, 3e-3), 0.989),
    "regbench": Control(f"{_LOOKING} x4", "train_size=150000", _recipe(5751, 64, 1e-3), 0.935, 0.956),
    "depo": Control(
        f"{_LOOKING} x4", "vocab=128 length=32 hops=2 queries=4 train_size=100000", _recipe(4105, 256, 2e-3), 0.995
    ),
    "mano": Control(_DEEP, "vocab=11 length=6 train_size=50000", _recipe(20_000, 512, 1e-3), 0.963),
}
