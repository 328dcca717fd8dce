"""Spaces, reduced to their parts."""

from __future__ import annotations

import numpy as np

from plait.device.components import DEEPEST_CHECK, Kit
from plait.mixers.table import load
from plait.space.table import load_space
from plait.spec import Header


def test_the_parts_of_a_space() -> None:
    (kit,) = Kit.of(load_space("lts-gpt2"))
    assert kit.widths == tuple(range(128, 961, 64))
    assert (kit.header.div, kit.header.vocab) == (4, 50264)
    layers = set(kit.layers())
    assert (960, load("mlp")(inner=4032, act="gelu-tanh")) in layers
    assert len(layers) == 14 * (3 + 62)
    assert [header.d for header in kit.headers()] == list(kit.widths)


def test_one_kit_a_header() -> None:
    kits = Kit.of(load_space("lts-proxy"))
    assert {kit.header.div for kit in kits} == {1, 2, 4}


def test_only_layers_that_fit() -> None:
    kit = Kit(Header(), (64, 96), ((load("attn")(heads=32),),), (1, 2))
    assert [d for d, _ in kit.layers()] == [64]


def test_models_are_made_of_the_kit() -> None:
    (kit,) = Kit.of(load_space("hybrid"))
    rng = np.random.default_rng(0)
    parts = {(d, options) for d, options in kit.layers()}
    for _ in range(20):
        arch = kit.model(rng)
        assert {(arch.header.d, options) for options in arch.layers} <= parts
        assert 1 <= len(arch.layers) <= 2 * DEEPEST_CHECK
