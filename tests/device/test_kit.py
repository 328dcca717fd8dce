"""Spaces, reduced to their parts."""

from __future__ import annotations

import numpy as np

from plait.device.features import DEEPEST_CHECK, Components
from plait.mixers.table import load
from plait.model.architecture import architecture
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


def test_models_have_what_their_layers_read_of_or_share_with_before_them() -> None:
    names = ("attn[heads=4]", "attn[heads=8]", "cross-attn[heads=4]", "cross-attn[heads=8]", "mamba", "gmu", "zamba2")
    shared = ("gla[heads=2,share=a]", "gla[heads=4,share=a]")
    slot = tuple(architecture(f"d=64 | attn mamba {text}").layers[-1] for text in names[:2] + names[4:5] + shared)
    readers = architecture(f"d=64 | attn[heads=4] {names[2]} attn[heads=8] {names[3]} mamba gmu zamba2").layers
    components = Components(Header(vocab=16), (64,), ((*slot, *readers[1::2], readers[-1]),), (1, 8))
    rng = np.random.default_rng(1)
    made = [components.model(rng) for _ in range(100)]
    assert all(architecture(arch.spec) == arch for arch in made)
    assert {options.name for arch in made for options in arch.layers} == {
        *("attn", "cross-attn", "mamba", "gmu", "zamba2", "gla"),
    }
