"""FLOPs as the papers count them, against values worked out by hand from their formulas."""

from __future__ import annotations

import pytest

from plait.core.errors import UserError
from plait.papers.conventions import fox_flops_per_token, mad_flops, mad_terms, par_block_flops

# D = 4, L = 8 (log2 L = 3), V = 10; H heads, S state, E expansion or experts as in the layer.
MAD_BY_HAND = {
    "attn[heads=2]": {
        "projections": 768,  # 6 L D² = 6·8·16
        "attention": 1280,  # 4 L² D + 2 H L² = 4·64·4 + 2·2·64
        "out layer": 256,  # 2 L D² = 2·8·16
    },
    "swiglu[inner=6]": {"glu": 1152},  # 6 L D D_glu = 6·8·4·6
    "hyena[state=16]": {
        "projections": 768,
        "convs on projections": 576,  # 18 L D = 18·8·4
        "featurization": 512,  # S L D = 16·8·4
        "convolution and gates": 1088,  # 10 L log2(L) D + 4 L D = 10·8·3·4 + 4·8·4
        "out layer": 256,
    },
    "mh-hyena[heads=2,state=3]": {
        "projections": 768,
        "convs on projections": 576,
        "featurization": 48,  # S L H = 3·8·2
        "convolution and gates": 2176,  # 10 L log2(L) D²/H + 4 L D²/H = 10·8·3·8 + 4·8·8
        "out layer": 256,
    },
    "mamba[state=4,expand=2]": {
        "projections": 1024,  # 4 L D² E = 4·8·16·2
        "short conv": 384,  # 6 L D E = 6·8·4·2
        "featurization": 1280,  # 2 L D E (D_dt + 2 S) + 2 L D E D_dt, D_dt = ⌈4/16⌉ = 1: 128·9 + 128
        "associative scan": 512,  # 2 L D E S = 2·8·4·2·4
        "out layer": 512,  # 2 L D² E = 2·8·16·2
    },
    "moe[experts=5,active=2,inner=6]": {
        "router": 160,  # L D A = 8·4·5
        "up projections": 3840,  # 4 L D D_moe A = 4·8·4·6·5
        "down projection": 768,  # 2 L D D_moe G = 2·8·4·6·2
    },
    "hyena-experts[experts=4,active=3,width=2,state=16]": {
        "router": 128,  # L D A = 8·4·4
        "projections": 768,
        "convs on projections": 576,
        "featurization": 768,  # S L D_moh G = 16·8·2·3
        "convolution and gates": 1632,  # 10 L log2(L) D_moh G + 4 L D_moh G = 10·8·3·6 + 4·8·6
        "out layer": 128,  # 2 L D_moh D = 2·8·2·4
    },
}


@pytest.mark.parametrize("layer", MAD_BY_HAND)
def test_mad_terms_by_hand(layer: str) -> None:
    name = layer.split("[")[0]
    expected = {f"{name}: {term}": value for term, value in MAD_BY_HAND[layer].items()}
    assert mad_terms(f"d=4 vocab=10 | {layer}", length=8) == {"embedding": 1280, **expected}  # 4 L D V = 4·8·4·10


def test_mad_terms_of_equal_layers_add_up() -> None:
    terms = mad_terms("d=4 vocab=10 | (attn[heads=2] swiglu[inner=6])x3", length=8)
    assert terms["attn: attention"] == 3 * 1280
    assert terms["swiglu: glu"] == 3 * 1152
    assert mad_flops("d=4 vocab=10 | (attn[heads=2] swiglu[inner=6])x3", length=8) == 1280 + 3 * (2304 + 1152)


@pytest.mark.parametrize("layer", ["gla", "fox", "mlp", "xl-attn"])
def test_mad_says_which_mixer_it_has_no_formula_for(layer: str) -> None:
    with pytest.raises(UserError, match=rf"C\.4 has no formula for {layer}; use the exact count"):
        mad_terms(f"d=64 | attn swiglu {layer}", length=8)


PAR = "d=512 norm=layer | {layer}"


@pytest.mark.parametrize(
    ("layer", "xl_code", "giga_multiply_adds"),
    [
        ("xl-attn[heads=8]", False, 0.656),
        ("xl-attn[heads=8]", True, 0.824),
        ("mlp[inner=2048]", False, 0.134),
        ("mlp[inner=2048]", True, 0.134),  # a feed-forward block wastes nothing
        ("identity", True, 0.0),
    ],
)
def test_par_blocks(layer: str, xl_code: bool, giga_multiply_adds: float) -> None:
    assert round(par_block_flops(PAR.format(layer=layer), xl_code=xl_code) / 2e9, 3) == giga_multiply_adds


def test_par_attention_term_by_term() -> None:
    new, keys, d = 64, 704, 512
    queries_outputs, keys_values, distances, mixing = (
        2 * new * d * d,
        2 * keys * d * d,
        keys * d * d,
        3 * new * keys * d,
    )
    found = par_block_flops(PAR.format(layer="xl-attn[heads=8]"))
    assert found == 2 * (queries_outputs + keys_values + distances + mixing)


def test_par_of_a_whole_model_leaves_the_softmax_out() -> None:
    attention, feed_forward = (par_block_flops(PAR.format(layer=x)) for x in ("xl-attn[heads=8]", "mlp[inner=2048]"))
    assert par_block_flops("par-base") == 6 * attention + 26 * feed_forward


# d = 32, V = 10, SwiGLU 48: a block's two norms, the SwiGLU, the final norm and the output layer, without the mixer.
REST = 2 * 32 + 3 * 32 * 48 + 32 + 10 * 32


@pytest.mark.parametrize(
    ("layer", "mixer_params", "extra"),
    [
        ("attn[heads=4]", 4 * 32 * 32, 2 * 32 * 100),  # 2 d L
        ("fox[heads=4]", 4 * 32 * 32 + 32 * 4 + 4, 2 * 32 * 100),
        ("attn[heads=4,window=16]", 4 * 32 * 32, 2 * 32 * 16),
        ("attn[heads=4,window=500]", 4 * 32 * 32, 2 * 32 * 100),
        ("hgrn2[head_dim=8]", 4 * 32 * 32 + 32, 5 * 32 * 8),  # 5 d head
        ("deltanet[head_dim=8]", 4 * 32 * 32 + 32 * 4 + 3 * 32 * 4 + 8, 6 * 32 * 8),  # 6 d head
    ],
)
def test_fox_by_hand(layer: str, mixer_params: int, extra: int) -> None:
    for tie in ("true", "false"):  # the output layer counts once, tied or not
        spec = f"d=32 vocab=10 tie={tie} | {layer} swiglu[inner=48]"
        assert fox_flops_per_token(spec, length=100) == 2 * (REST + mixer_params) + extra


def test_fox_counts_every_layer_and_mamba2_by_its_state() -> None:
    one, two = ("d=32 vocab=10 | " + "mamba2[state=16,head_dim=8] " * n for n in (1, 2))
    # input 32 × (64 + 96 + 8), convolution 96 × 5, 3 numbers a head, norm 64, output 64 × 32, and the norm before it
    params = 32 * 168 + 480 + 24 + 64 + 2048 + 32
    # 10 d state: the table's 20 is for a pair of layers.
    assert fox_flops_per_token(two) - fox_flops_per_token(one) == 2 * params + 10 * 32 * 16


@pytest.mark.parametrize("layer", ["gla", "xl-attn", "mamba"])
def test_fox_says_which_mixer_it_has_no_formula_for(layer: str) -> None:
    with pytest.raises(UserError, match=f"Table 6 has no formula for {layer}; use the exact count"):
        fox_flops_per_token(f"d=64 | attn swiglu {layer}")
