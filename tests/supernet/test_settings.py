"""Settings refuse what makes no sense; the turns of the two stages are pure functions of the step."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plait.core.errors import UserError
from plait.supernet.settings import ARCHITECTURE, PAR, WEIGHTS, Settings, Turns


def test_the_paper_s_preset() -> None:
    assert (PAR.steps, PAR.warmup * PAR.steps, PAR.share) == (40_000, 10_000, 0.2)
    assert (PAR.lr, PAR.weight_decay, PAR.patience) == (1e-2, 5e-4, 0.75)
    turns = Turns.of(PAR, epoch=5000)
    assert [turns.stage(step) for step in (0, 9_999, 10_000, 13_999, 14_000, 14_999, 15_000)] == [
        *(WEIGHTS, WEIGHTS, WEIGHTS, WEIGHTS, ARCHITECTURE, ARCHITECTURE, WEIGHTS)
    ]
    assert turns.total == {WEIGHTS: 34_000, ARCHITECTURE: 6_000}


@given(
    st.integers(1, 300),
    st.floats(0, 0.99),
    st.floats(0.01, 0.99),
    st.integers(2, 50) | st.just(0),
    st.integers(2, 500),
)
def test_turns_count_what_they_say(steps: int, warmup: float, share: float, cycle: int, epoch: int) -> None:
    turns = Turns.of(Settings(steps=steps, warmup=warmup, share=share, cycle=cycle), epoch)
    stages = [turns.stage(step) for step in range(steps)]
    for step in range(steps + 1):
        assert turns.before(step) == {stage: stages[:step].count(stage) for stage in (WEIGHTS, ARCHITECTURE)}
    assert ARCHITECTURE not in stages[: turns.warmup]
    assert ARCHITECTURE in stages  # however long an epoch is


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("steps", 0, "at least 1"),
        ("lr", float("inf"), "finite"),
        ("cycle", 1, "2 or more"),
        ("warmup", 1.0, "at least 0 and below 1"),
        ("share", 0.0, "between 0 and 1"),
        ("cold", 0.0, "greater than 0"),
        ("strength", -1.0, "not be negative"),
        ("weights", "sotf", "Did you mean 'soft'"),
        ("weights", "swap", "one of soft, straight-through, path"),
        ("architecture", "swop", "Did you mean 'swap'"),
        ("swaps", 0, "at least 1"),
        ("penalty", "time", "one of latency, ttft, token_time, energy, state, flops"),
        ("patience", 0.0, "above 0"),
        ("temperature", 1.0, "no setting 'temperature'"),
    ],
)
def test_bad_settings_are_refused(key: str, value: object, said: str) -> None:
    with pytest.raises(UserError, match=said):
        Settings().with_values({key: value})


def test_results_are_stored_under_the_names_they_always_had() -> None:
    changed = Settings().with_values({"hot": 3.0, "end_temperature": 0.5, "frozen": 0.1})
    assert (changed.start_temperature, changed.end_temperature, changed.warmup) == (3.0, 0.5, 0.1)
    assert {"hot": 3.0, "cold": 0.5, "frozen": 0.1}.items() <= changed.as_dict().items()
    assert Settings().with_values(changed.as_dict()) == changed
