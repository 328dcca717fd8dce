"""Which losses do screenings predict? Their rank correlation with the truth table at every budget.

    python benchmarks/screening_ranks.py [--out benchmarks/results/DATE-screening-ranks.md]

A screening (`racing/screening.py`) takes all steps of a training with a sixteenth of the tokens. Screenings of the
truth table's architectures (`proxy_training.py`: two sequences of 256 tokens per step, or one of 128) are compared with
the losses of full trainings of sixteen times their tokens, next to alternatives of the same cost: as many tokens of the
full training (32 sequences per step), and of one with 8 sequences per step.
"""

from __future__ import annotations

import argparse
import json
import textwrap
from pathlib import Path

import numpy as np
from screenings import score

from plait.analysis.rank import spearman

RESULTS = Path(__file__).parent / "results"
TRUTH = RESULTS / "2026-11-18-h200-truth.json"
PROXIES = [RESULTS / "2026-11-17-h200-proxy-training.json", RESULTS / "2026-11-17-h200-short-screening.json"]
COPIES = 16
TABLES = {
    "screening, 1 × 128 tokens per step": ("half-sequence", "short"),
    "screening, 2 × 256": ("tiny-batch", "short"),
    "8 × 256, first tokens": ("small-batch", "plain"),
}
FULL = "32 × 256, first tokens"
WORDS = (
    """`python benchmarks/screening_ranks.py`, 2026-11-18, of trainings on one H200 (torch 2.11, Triton 3.6): the truth
    table's 29 architectures on two texts (python sources, english), screenings with two seeds but for five of 2 × 256.
    Learning rates are the table's times 0.35 (512 tokens per step), 0.2 (128) and 0.5 (8 × 256). Spearman's
    correlation with the losses of full trainings, of what costs a sixteenth of them:""",
    """**A screening tells the ranking after sixteen times its tokens**, whether a step has fewer sequences or a shorter
    one, from 2 to 34 million tokens; the first tokens of a full training tell it the worse, the longer that is. So a
    race with the usual 8 sequences of 256 per step can be screened at a sixteenth of its cost by one sequence of
    128.""",
    """Limits: the full trainings have 32 sequences per step, also where the race would have 8; these are ranks of all
    29 architectures, and what such a screening adds to a race was not measured anew. The rate 0.2 was set beforehand,
    by the power law of `racing/screening.py`; no other was tried.""",
    """Where to place screenings of 128 tokens per step among the library's, of 512: Pearson's correlation of ln losses,
    and the slope of the former on the latter, for both texts:""",
    """Equal tokens (4096 steps of 128, 1024 of 512) give nearly the same deviations; equal steps do not.""",
)
Losses = dict[tuple[str, int], dict[str, float]]  # by text and tokens, then by architecture; means over seeds


def means(found: dict[tuple[str, int], dict[str, list[float]]]) -> Losses:
    return {at: {name: float(np.mean(losses)) for name, losses in by.items()} for at, by in found.items()}


def truths() -> Losses:
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    for run in json.loads(TRUTH.read_text(encoding="utf-8"))["runs"]:
        for tokens, loss in run["annealed"]:
            found.setdefault((run["text"], tokens), {}).setdefault(run["architecture"], []).append(loss)
    return means(found)


def proxies(setup: str, kind: str) -> Losses:
    """Of copied text a screening's score, of plain text the loss."""
    found: dict[tuple[str, int], dict[str, list[float]]] = {}
    rows = [row for path in PROXIES for row in json.loads(path.read_text(encoding="utf-8"))["setups"]]
    for row in (row for row in rows if row["setup"] == setup):
        for run in (run for run in row["runs"] if run["kind"] == kind):
            for tokens, parts in run["annealed"]:
                found.setdefault((run["text"], tokens), {}).setdefault(row["architecture"], []).append(
                    parts["loss"] if kind == "plain" else score(parts, tokens)
                )
    return means(found)


def correlation(one: dict[str, float] | None, other: dict[str, float]) -> float | None:
    """Spearman's; None if one of the architectures is missing."""
    if one is None or not set(other) <= set(one):
        return None
    return spearman([one[name] for name in other], [other[name] for name in other])


def shown(values: list[float | None]) -> str:
    return ", ".join("" if value is None else f"{value:.2f}" for value in values) if any(values) else ""


def ranks() -> list[str]:
    """Rows of a table: budgets, then every way to spend a sixteenth of them; both texts in a cell."""
    truth = truths()
    texts = sorted({text for text, _ in truth}, reverse=True)
    cheap = {**{name: proxies(*of) for name, of in TABLES.items()}, FULL: truth}
    lines = [f"| after | {' | '.join(cheap)} |", f"|---|{'---|' * len(cheap)}"]
    for tokens in sorted({tokens for _, tokens in truth}):
        cells = [
            shown([correlation(losses.get((text, tokens // COPIES)), truth[text, tokens]) for text in texts])
            for losses in cheap.values()
        ]
        if any(cells):
            lines.append(f"| {tokens / 1e6:.1f} M tokens | {' | '.join(cells)} |")
    return lines


def placed() -> list[str]:
    """Rows of a table: screenings of 128 tokens per step beside those of 512, Pearson's correlation of ln losses and
    the slope of the former on the latter."""
    short, usual = proxies(*TABLES["screening, 1 × 128 tokens per step"]), proxies(*TABLES["screening, 2 × 256"])
    texts, steps = sorted({text for text, _ in short}, reverse=True), (1024, 2048, 4096)
    lines = [f"| 1 × 128 | {' | '.join(f'2 × 256, {count} steps' for count in steps)} |", "|---|---|---|---|"]
    for count in steps:
        cells = []
        for other in steps:
            found = []
            for text in texts:
                names = sorted(set(short[text, 128 * count]) & set(usual[text, 512 * other]))
                y, x = (
                    np.log([by[name] for name in names]) for by in (short[text, 128 * count], usual[text, 512 * other])
                )
                found.append(f"{np.corrcoef(x, y)[0, 1]:.2f} ({np.polyfit(x, y, 1)[0]:.2f})")
            cells.append(", ".join(found))
        lines.append(f"| {count} steps | {' | '.join(cells)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    about, told, limits, places, equal = (textwrap.fill(" ".join(words.split()), 120) for words in WORDS)
    parts = ["# Which losses a screening ranks architectures by", about, "\n".join(ranks()), told, limits, places]
    text = "\n\n".join([*parts, "\n".join(placed()), equal])
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
