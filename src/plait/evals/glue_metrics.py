"""The metrics of GLUE (Wang et al. 2019, arXiv:1804.07461), each a number between -1 and 1, higher better."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plait.analysis.rank import ranks

Metric = Callable[[np.ndarray, np.ndarray], float]


def accuracy(predicted_N: np.ndarray, truth_N: np.ndarray) -> float:
    return float(np.mean(predicted_N == truth_N))


def f1(predicted_N: np.ndarray, truth_N: np.ndarray) -> float:
    """Of class 1: 2·hits / (2·hits + misses + false alarms); 0 where there is nothing to hit."""
    hits = np.sum((predicted_N == 1) & (truth_N == 1))
    wrong = np.sum((predicted_N == 1) != (truth_N == 1))
    return float(2 * hits / (2 * hits + wrong)) if hits else 0.0


def matthews(predicted_N: np.ndarray, truth_N: np.ndarray) -> float:
    """Matthews' correlation of two classes, which is Pearson's of the two 0/1 columns; 0 where either is constant."""
    return pearson((predicted_N == 1).astype(float), (truth_N == 1).astype(float))


def pearson(predicted_N: np.ndarray, truth_N: np.ndarray) -> float:
    a_N, b_N = predicted_N - predicted_N.mean(), truth_N - truth_N.mean()
    spread = np.sqrt(np.sum(a_N**2) * np.sum(b_N**2))
    return float(np.sum(a_N * b_N) / spread) if spread > 0 else 0.0


def spearman(predicted_N: np.ndarray, truth_N: np.ndarray) -> float:
    """Pearson's correlation of the ranks, ties sharing the mean of theirs."""
    return pearson(ranks(predicted_N), ranks(truth_N))
