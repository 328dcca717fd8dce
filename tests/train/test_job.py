"""What a training is, said in full."""

from __future__ import annotations

import math

import pytest

from plait.errors import UserError
from plait.train.job import Budget


@pytest.mark.parametrize("length", [{"tokens": math.nan}, {"tokens": math.inf}, {"flops": math.inf}, {"steps": 0}])
def test_a_length_is_a_positive_number(length: dict[str, float]) -> None:
    with pytest.raises(UserError, match="positive and finite"):
        Budget(**length)  # type: ignore[arg-type]
