"""Spaces, reduced to their parts."""

from __future__ import annotations

import numpy as np

from plait.device.features import DEEPEST_CHECK, Components
from plait.mixers.table import load
from plait.space.table import load_space
from plait.spec import Header


def test_the_parts_of_a_space() -> None:
    (components,) = Components.of(load_space("lts-gpt2"))
    assert components.widths == tuple(range(128, 961, 64))
    assert (components.header.div, components.header.vocab) == (4, 50264)
    layers = set(components.layers())
    assert (960, load("mlp")(inner=4032, act="gelu-tanh")) in layers
    assert len(layers) == 14 * (3 + 62)
    assert [header.d for header in components.headers()] == list(components.widths)


def test_one_kit_a_header() -> None:
    component_sets = Components.of(load_space("lts-proxy"))
    assert {components.header.div for components in component_sets} == {1, 2, 4}


def test_only_layers_that_fit() -> None:
    components = Components(Header(), (64, 96), ((load("attn")(heads=32),),), (1, 2))
    assert [d for d, _ in components.layers()] == [64]


def test_models_are_made_of_the_kit() -> None:
    (components,) = Components.of(load_space("hybrid"))
    rng = np.random.default_rng(0)
    parts = {(d, options) for d, options in components.layers()}
    for _ in range(20):
        arch = components.model(rng)
        assert {(arch.header.d, options) for options in arch.layers} <= parts
        assert 1 <= len(arch.layers) <= 2 * DEEPEST_CHECK
