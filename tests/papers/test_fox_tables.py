"""Table 1 of the Forgetting Transformer and its averages."""

from __future__ import annotations

import pytest

from plait.analysis.accuracy import average
from plait.papers.fox.facts import TABLE_1, accuracies, printed_average


@pytest.mark.parametrize("model", TABLE_1)
def test_the_printed_average_is_the_mean_of_ten_accuracies(model: str) -> None:
    assert len(TABLE_1[model]) == 13
    assert average(accuracies(model)) == pytest.approx(printed_average(model), abs=0.00501)


def test_six_of_seven_to_the_digit() -> None:
    exact = [model for model in TABLE_1 if abs(average(accuracies(model)) - printed_average(model)) < 0.00499]
    assert set(TABLE_1) - set(exact) == {"FoX (LLaMA)"}  # 49.825, printed 49.82
