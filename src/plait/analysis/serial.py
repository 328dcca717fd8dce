"""How many independent values a series is worth: of windows of a text, neighbours often belong to one document.

The variance of a mean of W values whose autocorrelations are r₁, r₂ … is σ² / W · (1 + 2 Σ rₖ). The sum runs over pairs
r₁ + r₂, r₃ + r₄ … as long as they are positive, and each counts at most as much as the one before it (the initial
monotone sequence of Geyer 1992), because later ones are noise. Nothing has to be known of where documents begin. If not
even the first pair exceeds its standard error, the values count as independent.

`benchmarks/documents.py` counts how often intervals hold on a text of documents.
"""

from __future__ import annotations

import numpy as np

from plait.analysis.distributions import t_quantile
from plait.analysis.pareto import Floats

FEWEST = 16  # values, of which fewer show no correlation
LEAST = 2.0  # independent values: a mean of fewer has no interval


def independent_count(values_W: Floats) -> float:
    """So many independent values would tell the mean as well; in the order of the text, at most W."""
    count = len(values_W)
    off_W = values_W - values_W.mean()
    variance = float(off_W @ off_W)
    if count < FEWEST or variance <= 0:
        return float(count)
    # The mean is of these values, which makes each autocorrelation too small by 1 / W.
    r_K = np.array([off_W[:-k] @ off_W[k:] / variance for k in range(1, count // 2)]) + 1 / count
    pairs_K = r_K[: len(r_K) // 2 * 2].reshape(-1, 2).sum(axis=1)
    if pairs_K[0] <= (2 / count) ** 0.5:
        return float(count)
    positive = int(np.argmax(np.append(pairs_K, 0.0) <= 0))
    factor = 1 + 2 * float(np.minimum.accumulate(pairs_K[:positive]).sum())
    # The variance about the mean of correlated values is too small as well, by (W − factor) / (W − 1).
    return float(np.clip(count / factor * (count - factor) / (count - 1), LEAST, count))


def mean_interval_in_order(values_W: Floats) -> tuple[float, float]:
    """The 95 % interval of the mean of at least two values in the order of the text: Student's t."""
    count = independent_count(values_W)
    reach = t_quantile(count - 1) * float(np.sqrt(values_W.var(ddof=1) / count))
    return float(values_W.mean()) - reach, float(values_W.mean()) + reach
