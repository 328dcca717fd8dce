"""Seeded weights: reproducible, independent of order and neighbours, as documented."""

from __future__ import annotations

import torch

from plait.model import build

SPEC = "d=64 vocab=101 | (fox[heads=4] swiglu)x3"


def test_a_seed_gives_the_same_weights_and_another_seed_others():
    a, b, c = build(SPEC, seed=1), build(SPEC, seed=1), build(SPEC, seed=2)
    torch.manual_seed(5)
    d = build(SPEC, seed=1)
    for (name, pa), pb, pc, pd in zip(
        a.named_parameters(), b.parameters(), c.parameters(), d.parameters(), strict=True
    ):
        assert torch.equal(pa, pb), name
        assert torch.equal(pa, pd), f"{name} depends on the global generator"
        if pa.dim() > 1:
            assert not torch.equal(pa, pc), name


def test_building_leaves_the_global_generator_alone():
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    build(SPEC)
    assert torch.equal(torch.rand(3), expected)


def test_a_deeper_model_starts_as_the_shallower_one_does():
    shallow, deep = build("d=32 vocab=11 | mlp mlp"), build("d=32 vocab=11 | mlp mlp mlp")
    assert torch.equal(shallow.backbone.blocks[1].mixer.up.weight, deep.backbone.blocks[1].mixer.up.weight)


def test_scales_are_as_documented():
    model = build("d=256 vocab=999 init=0.05 | (attn mlp)x2")
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            assert not parameter.any(), name
        elif "norm" in name:
            assert (parameter == 1).all(), name
        else:
            assert abs(parameter.std().item() - 0.05) < 0.002, name


def test_depth_scale_shrinks_the_last_map_of_every_layer():
    plain, scaled = build("d=64 vocab=11 | (attn mlp)x8"), build("d=64 vocab=11 depth_scale=true | (attn mlp)x8")
    for a, b in zip(plain.backbone.blocks, scaled.backbone.blocks, strict=True):
        (before,), (after,) = a.mixer.residual_weights(), b.mixer.residual_weights()
        torch.testing.assert_close(after, before / 4)


def test_meta_models_have_shapes_and_no_memory():
    model = build("fox-pro-760m", device="meta")
    assert all(p.is_meta for p in model.parameters())
