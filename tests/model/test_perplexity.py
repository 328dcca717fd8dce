"""Perplexity is e to the loss, and a number whatever the loss."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from plait.evals.perplexity import Perplexity
from plait.model.language_model import MOST_NATS, perplexities, perplexity_of


def test_it_is_e_to_the_loss() -> None:
    assert perplexity_of(0.0) == 1.0
    assert perplexity_of(2.5) == pytest.approx(math.exp(2.5))
    np.testing.assert_allclose(perplexities([0.0, 1.0, 3.25]), np.exp([0.0, 1.0, 3.25]))


@pytest.mark.parametrize("nats", [MOST_NATS, 710.0, 1e30, math.inf])
def test_of_a_model_that_diverged_it_is_still_a_number_and_the_same_everywhere(nats: float) -> None:
    assert json.loads(json.dumps(perplexity_of(nats), allow_nan=False)) == pytest.approx(math.exp(MOST_NATS))
    assert perplexities([nats]).tolist() == [perplexity_of(nats)]
    assert Perplexity(10 * nats, 10).perplexity == perplexity_of(nats)
