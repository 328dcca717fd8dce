"""Do the intervals of `plait compare` hold on a text of documents, whose windows are alike?

    python benchmarks/documents.py [--repetitions 400] [--out PAGE.md]

Windows of 256 bytes from files of Python's standard library are scored by two n-gram models learned from other files.
One of them also counts what it has seen in the window, which helps in some files more than in others, as one
architecture may be better at code and another at prose. A validation split is some hundred windows of whole files in
random order; from it windows are taken evenly, as the command does, and compared over three seeds whose noise is small.
The truth is the mean difference over all files. Then the same with windows drawn at random, which are independent.
"""

from __future__ import annotations

import argparse
import math
import sysconfig
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np

from plait.analysis.paired import compare_losses

WINDOW, LEARNED, DOCUMENTS, MOST = 256, 500_000, 160, 60_000
ORDER = 4
SEED_NOISE = 3e-4


class Ngrams:
    """Witten–Bell smoothed n-grams of bytes."""

    def __init__(self, text: bytes) -> None:
        self.counts: dict[bytes, Counter[int]] = defaultdict(Counter)
        for n in range(1, ORDER + 1):
            for at in range(n, len(text)):
                self.counts[text[at - n : at]][text[at]] += 1
        self.totals = {context: counter.total() for context, counter in self.counts.items()}

    def chance(self, before: bytes, byte: int, order: int) -> float:
        chance = 1 / 256
        for n in range(1, order + 1):
            context = before[-n:]
            if not (total := self.totals.get(context, 0)):
                break
            counter = self.counts[context]
            chance = (len(counter) * chance + counter[byte]) / (len(counter) + total)
        return chance


def losses(model: Ngrams, window: bytes) -> tuple[float, float]:
    """Nats per byte of the longer context, and of the shorter one with a memory of the window."""
    longer, remembering = 0.0, 0.0
    seen: dict[bytes, Counter[int]] = defaultdict(Counter)
    for at in range(ORDER, len(window)):
        before, byte = window[at - ORDER : at], window[at]
        longer -= math.log(model.chance(before, byte, ORDER))
        memory, usual = seen[before[-2:]], model.chance(before, byte, ORDER - 1)
        remembering -= math.log(
            (len(memory) * usual + memory[byte]) / (len(memory) + memory.total()) if memory else usual
        )
        memory[byte] += 1
    return longer / (len(window) - ORDER), remembering / (len(window) - ORDER)


def scored() -> list[np.ndarray]:
    """Each file's windows, with both losses."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    files = sorted(file for file in folder.glob("**/*.py") if "site-packages" not in file.parts)
    texts = [text for file in files if len(text := file.read_bytes()) > 2000]
    order = np.random.default_rng(0).permutation(len(texts))
    learned = b"".join(texts[at] for at in order[DOCUMENTS:])[:LEARNED]
    model = Ngrams(learned)
    documents = []
    for at in order[:DOCUMENTS]:
        text = texts[at][:MOST]
        starts = range(0, len(text) - WINDOW, WINDOW)
        documents.append(np.array([losses(model, text[start : start + WINDOW]) for start in starts]))
    return documents


def share_held(
    documents: list[np.ndarray], split: int, taken: int, repetitions: int, mixed: bool
) -> tuple[float, float, float]:
    """How often the interval of the difference holds the truth, its half-width, and the number of documents."""
    every = np.concatenate(documents)
    truth = float((every[:, 0] - every[:, 1]).mean())
    names = np.repeat(np.arange(len(documents)), [len(document) for document in documents])
    rng, held, widths, counted = np.random.default_rng(0), [], [], []
    for _ in range(repetitions):
        if mixed:
            places = rng.integers(0, len(every), taken)
        else:
            order = rng.permutation(len(documents))
            text = np.concatenate([np.flatnonzero(names == at) for at in order])
            first = int(rng.integers(0, len(text) - split + 1))
            places = text[first : first + split][np.linspace(0, split, taken, endpoint=False).astype(int)]
        runs = {
            name: {seed: every[places, column] + SEED_NOISE * rng.normal() for seed in range(3)}
            for column, name in enumerate(("longer", "remembering"))
        }
        interval = compare_losses(runs, draws=2).pairs[0].interval
        assert interval is not None
        held.append(interval[0] <= truth <= interval[1])
        widths.append((interval[1] - interval[0]) / 2)
        counted.append(len(set(names[places])))
    return float(np.mean(held)), float(np.median(widths)), float(np.median(counted))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=400)
    parser.add_argument("--out", type=Path, help="a page with the table")
    given = parser.parse_args()
    documents = scored()
    lines = ["| validation split, windows | taken | of documents | interval holds the truth | half-width, nats |",
             "|---|---|---|---|---|"]  # fmt: skip
    for split, taken in ((64, 64), (256, 16), (256, 64), (1000, 16), (1000, 64), (1000, 256), (3000, 64), (3000, 256)):
        for mixed in (False, True):
            if mixed and (split, taken) not in ((256, 16), (256, 64), (1000, 256)):
                continue
            held, width, counted = share_held(documents, split, taken, given.repetitions, mixed)
            name = "drawn at random from all" if mixed else f"{split:,}"
            lines.append(f"| {name} | {taken} | {counted:.0f} | {100 * held:.0f} % | {width:.3f} |")
            print(lines[-1], flush=True)
    if given.out:
        given.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
