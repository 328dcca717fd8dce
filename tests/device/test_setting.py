"""What may be asked of a measurement."""

from __future__ import annotations

from typing import Any

import pytest

from plait.core.errors import UserError
from plait.device.quantities import Setting


def test_prefill_and_decode_count_their_tokens() -> None:
    assert (Setting(seq=100).new_tokens, Setting(seq=100).held_tokens) == (100, 0)
    assert (Setting(mode="decode", seq=100).new_tokens, Setting(mode="decode", seq=100).held_tokens) == (1, 100)


def test_it_survives_json() -> None:
    setting = Setting(mode="decode", seq=7, batch=3, dtype="float64", threads=2)
    assert Setting(**setting.as_dict()) == setting


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "decoed"}, "Did you mean 'decode'"),
        ({"dtype": "float"}, "must be one of float32"),
        ({"seq": 0}, "seq=0"),
        ({"batch": -1}, "batch=-1"),
        ({"threads": 0}, "threads=0"),
        ({"dtype": "bfloat16"}, "only on GPUs"),
    ],
)
def test_mistakes(given: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Setting(**given)
