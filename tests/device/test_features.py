"""What a layer's time depends on."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from plait.device.features import of_embedding_and_head, of_layer
from plait.device.quantities import Setting
from plait.mixers.options import Cost, MixerOptions, option
from plait.mixers.table import load
from plait.spec import Header


def test_zero_stands_for_what_it_means() -> None:
    short = of_layer(256, load("mlp")(), "rms", Setting())
    long = of_layer(256, load("mlp")(inner=1024), "rms", Setting())
    assert short == long
    assert short.place["inner"] == math.log2(1025)
    attn = of_layer(256, load("attn")(heads=4), "rms", Setting(seq=100))
    assert attn.place["head_dim"] == math.log2(65)
    assert attn.place["kv_heads"] == attn.place["heads"]


def test_a_window_longer_than_the_sequence_is_none() -> None:
    wide = of_layer(64, load("attn")(window=500), "rms", Setting(seq=100))
    full = of_layer(64, load("attn")(), "rms", Setting(seq=100))
    assert wide.place["window"] == full.place["window"]


def test_options_without_cost_do_not_count() -> None:
    assert of_layer(64, load("attn")(theta=5e5), "rms", Setting()) == of_layer(64, load("attn")(), "rms", Setting())


def test_shared_weights_are_read_like_a_layers_own() -> None:
    one, shared = (of_layer(64, load("swiglu")(**more), "rms", Setting()) for more in ({}, {"share": "a"}))
    assert one == shared


def test_terms_grow_with_the_batch_but_weights_do_not() -> None:
    one, four = (of_layer(64, load("attn")(), "rms", Setting(batch=n)).terms for n in (1, 4))
    same = [a == b for a, b in zip(one, four, strict=True)]
    assert same == [True, False, False, True, False, False, False, False]
    assert four[1] == 4 * one[1]


def test_decoding_is_a_matter_of_one_token() -> None:
    mode = [of_layer(64, load("mlp")(), "rms", Setting(mode=m, seq=100)) for m in ("prefill", "decode")]
    assert mode[0].terms[1] == 100 * mode[1].terms[1]
    assert mode[0].names != mode[1].names


def test_outside_knows_its_vocabulary() -> None:
    small, large = (of_embedding_and_head(Header(d=64, vocab=v), Setting(seq=10)) for v in (100, 1000))
    assert large.terms[1] == 10 * small.terms[1] == 2 * 10 * 64 * 1000


def test_users_options_may_have_the_names_of_ours() -> None:
    @dataclass(frozen=True)
    class Options(MixerOptions):
        name: ClassVar[str] = "mine"
        kind: ClassVar[str] = "sequence"
        inner: int = option(5, "no inner_width here")
        head_dim: int = option(0, "no head_width")
        kv_heads: int = option(0, "no heads")
        shift: int = option(-3, "below zero")

        def cost(self, d: int, seq: int, memory: int = 0) -> Cost:
            return Cost(params={"all": d}, flops={"all": seq})

    place = of_layer(64, Options(), "rms", Setting()).place
    assert [place[name] for name in ("inner", "head_dim", "kv_heads", "shift")] == [math.log2(6), 0.0, 0.0, -2.0]


def test_a_token_attends_to_all_that_is_held() -> None:
    step = of_layer(64, load("attn")(heads=4), "rms", Setting(mode="decode", seq=500, batch=3))
    assert step.terms[6] == 3 * 4 * 501
