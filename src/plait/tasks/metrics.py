"""Accuracy of predicted tokens, over the positions that are scored.

N  sequences      T  tokens of a sequence
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from plait.core.errors import UserError
from plait.tasks.task import IGNORE

Metric = Callable[[np.ndarray, np.ndarray], float]
BATCH = 128


def token_accuracy(predictions_NT: np.ndarray, targets_NT: np.ndarray) -> float:
    """The share of scored positions that are right (the paper's accuracy)."""
    scored_NT = _scored(predictions_NT, targets_NT)
    return float((predictions_NT == targets_NT)[scored_NT].mean())


def macro_accuracy(predictions_NT: np.ndarray, targets_NT: np.ndarray, *, batch: int = BATCH) -> float:
    """mad-lab's accuracy: for each batch of sequences the mean over tokens of the share of that token's positions that
    are right, then the mean over batches. A token that is predicted but never right to predict counts as 0."""
    _scored(predictions_NT, targets_NT)
    means = []
    for start in range(0, len(targets_NT), batch):
        predictions, targets = predictions_NT[start : start + batch], targets_NT[start : start + batch]
        asked = targets != IGNORE
        predictions, targets = predictions[asked].astype(np.int64), targets[asked].astype(np.int64)
        if not len(targets):
            continue
        size = int(max(predictions.max(), targets.max())) + 1
        occurs = np.bincount(targets, minlength=size)
        right = np.bincount(targets[predictions == targets], minlength=size)
        counted = (occurs > 0) | (np.bincount(predictions, minlength=size) > 0)
        means.append(float((right[counted] / np.maximum(occurs[counted], 1)).mean()))
    return float(np.mean(means))


def metric(variant: str) -> Metric:
    """The accuracy that goes with a variant of the tasks."""
    return macro_accuracy if variant == "mad-lab" else token_accuracy


def _scored(predictions_NT: np.ndarray, targets_NT: np.ndarray) -> np.ndarray:
    if predictions_NT.shape != targets_NT.shape:
        raise UserError(f"predictions {predictions_NT.shape} and targets {targets_NT.shape} differ in shape.")
    scored_NT: np.ndarray = targets_NT != IGNORE
    if not scored_NT.any():
        raise UserError("no position is scored, so there is no accuracy.")
    return scored_NT
