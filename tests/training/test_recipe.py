"""Recipes: the papers' figures, and what a key may be."""

from __future__ import annotations

import math

import pytest

from plait.core.errors import UserError
from plait.papers.mad.scaling_presets import TABLE_C2
from plait.papers.recipes import RECIPES, mad_recipe, recipe
from plait.training.recipe import Recipe, rate, warmup_steps


def test_lts_table_2():
    rows = {
        "lts-xl-wt103": ("lamb-xl", 40_000, 256, 1e-2, "cosine", 1000, 0.1, 0.0),
        "lts-xl-lm1b": ("adam", 100_000, 224, 2.5e-4, "cosine", 20_000, 0.0, 0.0),
        "lts-gpt2-wt103": ("lamb-xl", 40_000, 256, 1e-2, "cosine", 1000, 0.1, 0.1),
        "lts-gpt2-lm1b": ("lamb-xl", 100_000, 224, 2.5e-4, "cosine", 20_000, 0.1, 0.1),
        "lts-gpt2-pile": ("adam", 54_800, 256, 3e-5, "linear", 715, 0.1, 0.0),
    }
    for name, row in rows.items():
        p, r = recipe(name), recipe(name).recipe
        assert (r.optimizer, p.steps, r.batch, r.lr, r.schedule, r.warmup, r.dropout, r.attn_dropout) == row, name


def test_par_segments_memory_and_batch():
    """Table A1 and §3.1: tgt_len = mem_len = 192, 384 and 512; batch 256 (A.3), Large 128."""
    rows = {name: recipe(f"par-{name}").recipe for name in ("base", "large", "24b")}
    assert {name: (r.seq_len, r.memory, r.batch) for name, r in rows.items()} == {
        "base": (192, 192, 256), "large": (384, 384, 128), "24b": (512, 512, 256),
    }  # fmt: skip


def test_fox_tables_4_and_5():
    assert [(recipe(f"fox-{size}").steps, recipe(f"fox-{size}").recipe.lr) for size in ("125m", "360m", "760m")] == [
        (5120, 2e-3), (14336, 2e-3), (30720, 1e-3),
    ]  # fmt: skip
    table = {name: p.recipe.lr for name, p in RECIPES.items() if name.startswith("fox-48b-")}
    assert sorted(table.values()) == [5e-4, 1e-3, 1e-3, 1e-3, 2e-3, 2e-3, 2e-3]
    one = recipe("fox-125m").recipe
    assert one.batch * one.seq_len * recipe("fox-125m").steps == 2_684_354_560  # Table 4's tokens
    assert one.warmup * one.batch * one.seq_len == 256 * 2**20  # warm-up of 256Mi tokens


def test_fox_at_2k_reads_15_billion_tokens():
    """Table 7: a context of 2048, 15B tokens."""
    p = recipe("fox-340m-2k")
    assert p.recipe.seq_len == 2048
    assert p.recipe.batch * 2048 * p.steps == pytest.approx(15e9, rel=1e-3)


def test_mad_rates_are_those_printed_at_every_row():
    for row in TABLE_C2:
        assert mad_recipe(1e6 * row.params_m, 4e18).lr == pytest.approx(row.lr, rel=1e-12)
    assert mad_recipe(1e6, 4e18).lr == TABLE_C2[0].lr
    assert 6e-4 < mad_recipe(330e6, 4e18).lr < 6.25e-4


def test_bert_phases_and_mad_rules():
    assert [(recipe(f"bert-phase{i}").recipe.seq_len, recipe(f"bert-phase{i}").recipe.batch,
             recipe(f"bert-phase{i}").steps) for i in (1, 2)] == [(128, 65536, 7038), (512, 32768, 1563)]  # fmt: skip
    assert mad_recipe(150e6, 8e18).lr == pytest.approx(8e-4)
    assert mad_recipe(7e9, 2e21).lr == pytest.approx(2e-4)
    sizes = [mad_recipe(p, f).batch * 8192 for p, f in ((8e6, 4e18), (150e6, 8e19), (1e9, 2e20), (7e9, 2e21))]
    assert sizes == [2**18, 2**19, 2**20, 2**21]


def test_schedules():
    one = Recipe(warmup=10, min_lr_ratio=0.1)
    assert [rate(one, step, 110) for step in (0, 5, 10)] == [0.0, 0.5, 1.0]
    assert rate(one, 60, 110) == pytest.approx(0.1 + 0.9 * 0.5)
    assert rate(one, 110, 110) == pytest.approx(0.1)
    assert rate(Recipe(warmup=0, schedule="linear"), 25, 100) == pytest.approx(0.75)
    assert rate(Recipe(warmup=0, schedule="constant"), 99, 100) == 1.0
    wsd = Recipe(warmup=0, schedule="wsd", decay=0.4, min_lr_ratio=0.1)  # 1 − √ over the last 40 of 100 steps
    assert [rate(wsd, step, 100) for step in (59, 60, 70, 100)] == pytest.approx([1.0, 1.0, 0.1 + 0.9 * 0.5, 0.1])
    assert rate(Recipe(warmup=0), 50, 100) == pytest.approx(0.5 * (1 + math.cos(math.pi / 2)))
    assert warmup_steps(Recipe(warmup=0.05), 200) == 10
    assert warmup_steps(Recipe(warmup=1000), 200) == 200


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ({"optimizer": "adamww"}, "Did you mean 'adamw'"),
        ({"batch": 0}, "batch=0"),
        ({"batch": 10**20}, "fits no machine"),
        ({"lr": 0.0}, "lr=0.0"),
        ({"dropout": 1.0}, "dropout=1.0"),
        ({"weight_deca": 0.1}, "Did you mean 'weight_decay'"),
    ],
)
def test_bad_values_name_the_key(values, part):
    with pytest.raises(UserError, match=part.replace("(", r"\(")):
        Recipe().with_values(values)


def test_unknown_recipe_suggests():
    with pytest.raises(UserError, match="Did you mean 'lts-xl-wt103'"):
        recipe("lts-xl-wt13")
