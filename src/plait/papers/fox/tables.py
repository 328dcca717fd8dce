"""Zero-shot results as the Forgetting Transformer prints them (Lin et al. 2025, arXiv:2503.02130): Table 1, 760M models
after 48B tokens of LongCrawl64. Perplexities, then accuracies in per cent, then the printed average."""

from __future__ import annotations

from plait.analysis.accuracy import SHORT_CONTEXT

PERPLEXITIES = ("wikitext", "lambada_openai")
#: Model → WikiText and LAMBADA perplexity, the ten accuracies in the order of `SHORT_CONTEXT`, the average.
TABLE_1: dict[str, tuple[float, ...]] = {
    "FoX (Pro)": (23.04, 14.91, 42.75, 64.09, 38.39, 52.33, 52.23, 26.54, 71.00, 29.80, 85.10, 46.57, 50.88),
    "Transformer (Pro)": (24.12, 16.16, 41.47, 64.04, 36.60, 49.72, 51.98, 25.26, 62.00, 29.20, 82.80, 60.86, 50.39),
    "FoX (LLaMA)": (26.45, 18.27, 40.17, 63.44, 35.17, 51.78, 49.66, 25.09, 69.00, 28.00, 81.90, 54.04, 49.82),
    "Transformer (LLaMA)": (28.14, 22.34, 38.27, 63.22, 34.20, 49.49, 47.98, 24.49, 66.00, 29.40, 78.90, 58.93, 49.09),
    "Mamba-2": (28.20, 21.05, 36.50, 63.17, 35.86, 50.59, 49.96, 25.60, 71.00, 31.00, 80.90, 57.49, 50.21),
    "HGRN2": (30.57, 20.14, 38.60, 63.49, 34.94, 51.78, 50.13, 25.51, 66.00, 30.00, 75.60, 58.41, 49.45),
    "DeltaNet": (29.17, 29.14, 34.27, 62.73, 33.28, 50.28, 47.39, 24.32, 70.00, 29.00, 74.30, 54.37, 47.99),
}


def accuracies(model: str) -> dict[str, float]:
    """Task → accuracy in per cent."""
    first = len(PERPLEXITIES)
    return dict(zip(SHORT_CONTEXT, TABLE_1[model][first:-1], strict=True))


def printed_average(model: str) -> float:
    return TABLE_1[model][-1]
