"""How many steps fit a time, where clocks differ and where nothing is left."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from plait.training import speed
from plait.training.speed import TooShort, steps_that_fit


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows with every step of the throw-away model."""
    steps: list[int] = []
    model = SimpleNamespace(advance=lambda: steps.append(0), validation_loss=lambda share: 0.0)
    monkeypatch.setattr(speed, "Trainer", lambda *_, **__: model)
    return steps


def fitting(left: float, **dist: Any) -> int:
    return steps_that_fit(None, left, SimpleNamespace(**dist), activation_checkpointing=False, compiled=False)  # type: ignore[arg-type]


def test_processes_stop_measuring_at_the_same_step_and_do_what_the_first_has_found(taken: list[int]) -> None:
    assert fitting(-3.0, any=lambda over: len(taken) == 9, broadcast=lambda mine: 123) == 123
    assert len(taken) == 9  # though nothing is left by its own clock


@pytest.mark.usefixtures("taken")
def test_a_time_that_is_over_already_is_none() -> None:
    with pytest.raises(TooShort, match=r"^0 s are too few: .*; give more --time\.$"):
        fitting(-3.0, any=lambda over: over, broadcast=lambda mine: mine)
