"""The arithmetic of a layer's cost: sums, sharing, and the same formulas for one size and for many."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from plait.mixers.attn import AttnOptions, XlAttnOptions
from plait.mixers.mlp import MlpOptions, MoeOptions, SwigluOptions
from plait.mixers.options import Cost, MixerOptions, linear
from plait.mixers.sparse_attn import SparseAttnOptions
from plait.mixers.table import MIXERS, load
from plait.model.architecture import options_of
from plait.spec import parse

QUANTITIES = ("total_params", "active_params", "total_flops", "fixed_state", "conv_state", "kv_cache", "masked")


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


SPARSE = ["select=index,top=9", "select=moba,top=12,block=4", "select=moba,top=5,block=5", "select=nsa,top=8,block=4"]
PARALLEL = ["(attn | mamba2)", "(attn[window=7] | mlp)", "(fox | sparse-attn[top=9])[norm]"]


@pytest.mark.parametrize(
    "text",
    [
        *(name for name in MIXERS if name not in ("parallel", "mla", "xl-attn")),
        *(f"sparse-attn[{given}]" for given in SPARSE),
        *PARALLEL,
    ],
)
def test_what_must_be_computed_is_the_same_at_once_and_token_by_token(text: str) -> None:
    """The causal half of attention: a mask leaves out what no step computes. (Not for latent and relative attention: a
    step of the one attends in the latent space, of the other projects all distances again.)"""
    options = options_of(parse(text).layers[0])
    whole = options.cost(256, 41).unmasked_flops
    assert whole == sum(options.cost(256, 1, memory).unmasked_flops for memory in range(41))
    assert whole == options.cost(256, 17).unmasked_flops + options.cost(256, 24, 17).unmasked_flops


@pytest.mark.parametrize("select", ["index", "moba", "nsa"])
def test_pairs_that_sparse_attention_computes_counted_one_by_one(select: str) -> None:
    d, top, block, window, tokens, before = 16, 12, 4, 7, 30, 11
    options = SparseAttnOptions(heads=2, select=select, top=top, block=block, window=window, index_heads=3, index_dim=6)
    attended = scored = 0
    for position in range(before, before + tokens):
        if select == "index":
            scored += position + 1
            attended += min(top, position + 1)
        else:
            past = position // block  # whole blocks before the query's own
            scored += past
            attended += block * min(past, top // block - 1) + position % block + 1
        if select == "nsa":
            attended += min(window, position + 1)
    score = {"index": 2 * 3 * 6, "moba": 2 * d, "nsa": 4 * d}[select]  # nsa weighs the blocks' mean values, too
    cost = options.cost(d, tokens, before)
    assert cost.unmasked_flops - cost.flops["projections"] == 4 * d * attended + score * scored


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
