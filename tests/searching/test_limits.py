"""Limits as they are written on a command line."""

from __future__ import annotations

import math

import pytest

from plait.core.errors import UserError
from plait.space.constraints import Constraint, Limits


def test_units_and_constraints() -> None:
    limits = Limits.read(state="2 MiB", latency="40ms", memory="0.3GB")
    assert limits == Limits(latency=0.04, memory=3e8, state=2 * 2**20)
    assert limits.constraints() == ["latency_high <= 40ms", "memory_high <= 300MB", "state <= 2.09715MB"]
    assert Limits.read(latency="1.5s").constraints() == ["latency_high <= 1500ms"]
    for constraint, name in zip(limits.constraints(), ("latency_high", "memory_high", "state"), strict=True):
        limit = limits.as_dict()[name.removesuffix("_high")]
        assert Constraint.parse(constraint).check({name: 0.999 * limit})
        assert not Constraint.parse(constraint).check({name: 1.001 * limit})


def test_numbers_and_speeds() -> None:
    assert Limits.read(latency=0.04, memory="300MB", state=None) == Limits(latency=0.04, memory=3e8)
    assert Limits.read(50.0) == Limits(token_time=0.02)
    with pytest.raises(UserError, match="--tokens-per-second and --token-time mean the same"):
        Limits.read(50.0, token_time="20ms")


@pytest.mark.parametrize("wrong", [-0.04, math.nan, math.inf])
def test_a_number_is_a_limit_if_it_can_be_one(wrong: float) -> None:
    assert Limits.read(state=0) == Limits(state=0.0)  # none at all
    with pytest.raises(UserError, match="a limit is finite and not negative"):
        Limits.read(latency=wrong)
    with pytest.raises(UserError, match=r"--tokens-per-second .* must be greater than 0 and finite"):
        Limits.read(wrong)
    with pytest.raises(UserError, match="--tokens-per-second 0: must be"):
        Limits.read(0)


def test_a_limit_is_of_a_quantity_in_the_table() -> None:
    assert Limits.read(flops="2G").constraints() == ["flops <= 2G"]
    assert Limits.read(flops="2G").on_device == {}
    with pytest.raises(
        UserError,
        match=r"unknown quantity 'latencies'. Did you mean 'latency'\? Known: latency, ttft, token_time, memory",
    ):
        Limits(latencies=1.0)
    with pytest.raises(UserError, match=r"Did you mean 'latency'\?"):
        Limits.read(latencies="40ms")


def test_only_what_is_given_limits() -> None:
    assert Limits().constraints() == []
    assert Limits().exceeded({"latency": 1e9}) == []
    assert Limits.read(memory="1MB").on_device == {"memory": 1e6}


def test_what_is_exceeded_is_said() -> None:
    limits = Limits.read(latency="40ms", memory="300MB")
    assert limits.exceeded({"latency": 0.04, "memory": 2e8}) == []
    assert limits.exceeded({"latency": 0.0412, "memory": 2e8}) == ["latency 41.2ms, not 40ms"]
    assert len(limits.exceeded({"latency": 0.0412, "memory": 4e8})) == 2


@pytest.mark.parametrize("text", ["40", "40MB", "ms", "-1ms", "0ms", "fast"])
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UserError, match=r"latency '.*' given; write a number above 0 and a unit .* as 40ms"):
        Limits.read(latency=text)


def test_what_is_no_size() -> None:
    with pytest.raises(UserError, match=r"memory '300ms' given.* as 300MB"):
        Limits.read(memory="300ms")
