"""The arithmetic of a layer's cost: sums, sharing, and the same formulas for one size and for many."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from plait.mixers.attn import AttnOptions
from plait.mixers.cost import Cost, linear
from plait.mixers.mlp import MlpOptions, MoeOptions, SwigluOptions
from plait.mixers.options import MixerOptions
from plait.mixers.table import MIXERS, load
from plait.mixers.xl_attn import XlAttnOptions

QUANTITIES = ("total_params", "active_params", "total_flops", "fixed_state", "conv_state", "kv_cache")


def assert_same_as_one_by_one(many: Cost, ones: list[Cost]) -> None:
    for quantity in QUANTITIES:
        column = np.broadcast_to(getattr(many, quantity), len(ones))
        assert column.tolist() == [getattr(one, quantity) for one in ones], quantity


def test_totals_are_sums_and_active_defaults_to_all() -> None:
    cost = Cost(params={"a": 3, "b": 4}, flops={"x": 10, "y": 20}, shared={"c": 100})
    assert (cost.total_params, cost.active_params, cost.total_flops) == (7, 7, 30)
    assert Cost(params={"a": 3}, flops={}, active=0).active_params == 0


def test_linear_counts_its_bias() -> None:
    assert (linear(3, 5), linear(3, 5, bias=True)) == (15, 20)


@pytest.mark.parametrize("name", MIXERS)
def test_widths_may_be_an_array(name: str) -> None:
    options, widths = load(name)(), np.array([256, 512, 1280])
    many = options.cost(widths, 48, 16)
    assert_same_as_one_by_one(many, [options.cost(int(d), 48, 16) for d in widths])


@pytest.mark.parametrize(
    ("kind", "arrays", "fixed"),
    [
        (AttnOptions, {"heads": [2, 4, 8]}, {"bias": True, "forget": "full"}),
        (AttnOptions, {"heads": [4, 8, 8], "kv_heads": [2, 1, 4]}, {"kv_shift": True}),
        (XlAttnOptions, {"heads": [2, 4, 8], "head_dim": [64, 64, 32]}, {"clamp": 5}),
        (MlpOptions, {"inner": [128, 192, 4032]}, {}),
        (SwigluOptions, {"inner": [128, 192, 4032]}, {}),
        (MoeOptions, {"experts": [4, 8, 16], "active": [1, 2, 4]}, {}),
    ],
)
def test_options_may_be_arrays(
    kind: type[MixerOptions], arrays: dict[str, list[int]], fixed: dict[str, object]
) -> None:
    widths = np.array([128, 256, 640])
    many = kind.sizes(**{key: np.array(column) for key, column in arrays.items()}, **fixed).cost(widths, 32, 8)
    ones = [
        kind(**{key: column[i] for key, column in arrays.items()}, **fixed).cost(int(d), 32, 8)
        for i, d in enumerate(widths)
    ]
    assert_same_as_one_by_one(many, ones)


@pytest.mark.parametrize("name", MIXERS)
def test_flops_are_linear_in_tokens_unless_state_grows(name: str) -> None:
    options = load(name)()
    once, twice = options.cost(256, 32), options.cost(256, 64)
    if twice.kv_cache or options.reads == "keys":  # of its own, or another layer's
        assert twice.total_flops > 2 * once.total_flops
        assert twice.kv_cache == 2 * once.kv_cache
    else:
        assert twice.total_flops == 2 * once.total_flops
    assert (twice.fixed_state, twice.conv_state) == (once.fixed_state, once.conv_state)


def test_a_window_bounds_what_is_kept() -> None:
    for options in (AttnOptions(), XlAttnOptions()):
        held = dataclasses.replace(options, window=10).cost(64, 6, memory=100).kv_cache
        assert held == 2 * 64 * 9  # the tenth is the next token itself
        assert dataclasses.replace(options, window=10).cost(64, 6).kv_cache == 2 * 64 * 6


def test_experts_count_whole_but_meet_a_token_in_part() -> None:
    cost = MoeOptions(experts=4, active=1, inner=10).cost(8, 3)
    assert cost.total_params == 8 * 4 + 4 * 3 * 8 * 10
    assert cost.active_params == 8 * 4 + 3 * 8 * 10
    assert cost.total_flops == 2 * 3 * cost.active_params
