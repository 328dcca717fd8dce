"""Accuracy over scored positions: plain, and averaged over tokens and batches as mad-lab does."""

from __future__ import annotations

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.tasks import IGNORE, macro_accuracy, metric, token_accuracy

TARGETS = np.array([[IGNORE, 1, 1, 1], [IGNORE, 2, IGNORE, 3]])
PREDICTIONS = np.array([[9, 1, 1, 2], [9, 2, 9, 4]])


def test_token_accuracy_counts_scored_positions_only():
    assert token_accuracy(PREDICTIONS, TARGETS) == 3 / 5
    assert token_accuracy(np.where(TARGETS == IGNORE, 0, TARGETS), TARGETS) == 1


def test_macro_accuracy_weighs_tokens_equally():
    # 1: 2 of 3; 2: 1 of 1; 3: 0 of 1; 4: predicted, never right. 9 is predicted where nobody asks.
    assert macro_accuracy(PREDICTIONS, TARGETS) == pytest.approx((2 / 3 + 1 + 0 + 0) / 4)


def test_macro_accuracy_is_the_mean_over_batches():
    first, second = (2 / 3 + 0) / 2, (1 + 0 + 0) / 3  # in the first, 2 is predicted and never right
    assert macro_accuracy(PREDICTIONS, TARGETS, batch=1) == pytest.approx((first + second) / 2)
    nothing_asked = np.full((1, 4), IGNORE)
    assert macro_accuracy(
        np.concatenate([PREDICTIONS, nothing_asked + 200]), np.concatenate([TARGETS, nothing_asked]), batch=2
    ) == macro_accuracy(PREDICTIONS, TARGETS)  # fmt: skip


def test_both_agree_where_all_is_right():
    targets = np.random.default_rng(0).integers(0, 16, size=(300, 20)).astype(np.int16)
    assert token_accuracy(targets, targets) == macro_accuracy(targets, targets) == 1


def test_a_variant_has_its_metric():
    assert metric("paper") is token_accuracy
    assert metric("mad-lab") is macro_accuracy


@pytest.mark.parametrize("accuracy", [token_accuracy, macro_accuracy])
def test_nothing_to_score(accuracy):
    with pytest.raises(UserError, match="no position is scored"):
        accuracy(PREDICTIONS, np.full_like(TARGETS, IGNORE))
    with pytest.raises(UserError, match="differ in shape"):
        accuracy(PREDICTIONS[:1], TARGETS)
