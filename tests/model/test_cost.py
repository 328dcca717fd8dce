"""Costs without a model are what counting the built model gives: parameters, FLOPs, state; one by one or vectorised."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from plait.mixers import attn_module
from plait.mixers import table as arch
from plait.mixers.attn import AttnOptions, XlAttnOptions
from plait.mixers.mlp import MlpOptions
from plait.model import build, model_cost
from plait.model.architecture import Architecture, architecture
from plait.model.cost import decoder_costs, norm_params, shares
from plait.ops.attention import attention, attention_path, attention_reference

ENCODER = "d=24 vocab=31 kind=encoder pos=learned max_len=50 segments=2 embed_norm=true norm=layer"
BANDS = "vocab=90 embed=adaptive cutoffs=20/50"
HEADERS = {
    "defaults": "d=24 vocab=31 | attn[heads=2] mlp",
    "tie": "d=24 vocab=31 tie=true | attn[heads=2] mlp",
    "tie, bias": "d=24 vocab=31 tie=true head_bias=true | attn[heads=2] mlp",
    "head bias": "d=24 vocab=31 head_bias=true | attn[heads=2] mlp",
    "narrow embedding": "d=24 vocab=31 d_embed=8 | mlp",
    "learned positions": "d=24 vocab=31 pos=learned max_len=50 | attn[heads=2,pos=none]",
    "sinusoidal positions": "d=24 vocab=31 pos=sinusoidal embed_scale=true | attn[heads=2,pos=none]",
    "layer norm": "d=24 vocab=31 norm=layer | attn[heads=2] mlp",
    "no final norm": "d=24 vocab=31 norm=layer final_norm=false | attn[heads=2] mlp",
    "embedding norm": "d=24 vocab=31 embed_norm=true | mlp",
    "segments": "d=24 vocab=31 segments=3 | mlp",
    "no norm before identity": "d=24 vocab=31 | identity mlp identity",
    "encoder": f"{ENCODER} | (attn[heads=2,causal=false,pos=none,bias] mlp)x2",
    "encoder, tied, bias": f"{ENCODER} tie=true head_bias=true | attn[heads=2,causal=false]",
    "auto-encoder": "d=24 vocab=31 kind=autoencoder | attn[heads=2] swiglu",
    "auto-encoder, tie ignored": "d=24 vocab=31 kind=autoencoder tie=true | swiglu",
    "one band": "d=24 vocab=31 embed=adaptive div=4 tie=true | mlp",
    "bands": f"d=24 {BANDS} | mlp",
    "bands, tied": f"d=24 {BANDS} tie=true | mlp",
    "bands, narrow": f"d=24 {BANDS} d_embed=8 | mlp",
    "bands, narrow, tied": f"d=24 {BANDS} d_embed=8 tie=true | mlp",
    "bands, div 2": f"d=24 {BANDS} div=2 | mlp",
    "bands, div 2, tied": f"d=24 {BANDS} div=2 tie=true | mlp",
    "bands, div 4": f"d=24 {BANDS} div=4 d_embed=16 | mlp",
    "bands, div 4, tied": f"d=24 {BANDS} div=4 d_embed=17 tie=true | mlp",
    "encoder, bands": f"d=24 {BANDS} kind=encoder div=2 tie=true | attn[heads=2,causal=false]",
    "shared biases": "d=24 vocab=31 | (xl-attn[heads=2,shared_bias] mlp)x3 xl-attn[heads=2]",
}

# At d = 256. Every option that changes a count is away from its default somewhere.
ODD_OPTIONS = {
    "attn": [
        "heads=4,kv_heads=2,bias",
        "heads=3,head_dim=10,qk_norm=shared",
        "heads=4,window=5,pos=alibi",
        "heads=4,sinks,head_gate,rotary=0.5",
        "heads=4,kv_heads=2,qkv_bias,rope_scaling=linear,rope_factor=2",
    ],
    "fox": [
        "heads=4,kv_heads=1,head_dim=6,qk_norm=per-head,out_gate,out_norm,kv_shift,bias",
        "forget=bias-only,window=4,kv_shift",
        "forget=fixed,qk_norm=shared",
    ],
    "xl-attn": ["heads=3,head_dim=6", "window=5,clamp=3", "clamp=400"],
    "mamba": ["state=3,expand=1.5,conv=2,dt_rank=5,conv_bias=false,bias", "expand=1,conv=1"],
    "mamba2": ["state=6,expand=3,head_dim=32,conv=3,groups=2"],
    "hyena": ["short=4,state=3"],
    "mh-hyena": ["heads=4,short=2,state=3"],
    "hyena-experts": ["experts=3,active=2,width=5,short=4,state=7"],
    "linear": ["heads=2,feature=relu", "normalize=false,feature=identity"],
    "gla": ["heads=2,expand_k=0.5,expand_v=2,gate_rank=3", "conv=4,out_gate=none"],
    "hgrn2": ["head_dim=16"],
    "rwkv6": ["head_dim=32,decay_rank=5,mix_rank=3"],
    "deltanet": ["head_dim=32,conv=3,neg_eigval"],
    "gated-deltanet": ["head_dim=64,expand_v=2,conv=2", "out_gate=none"],
    "mla": ["heads=4,q_rank=24,out_gate=per-head,v_dim=32", "heads=3,kv_rank=9,nope_dim=5,rope_dim=4,v_dim=7"],
    "retnet": ["heads=2,head_dim=6,expand_v=1,out_gate=none"],
    "deltaproduct": ["head_dim=32,steps=3,conv=2,forget,out_gate=silu"],
    "kda": ["heads=3,head_dim=16,conv=2,out_gate=none", "head_dim=32,write=channel"],
    "rwkv7": ["head_dim=32,decay_rank=5,rate_rank=3,gate_rank=7"],
    "mamba3": ["state=6,expand=3,head_dim=32,groups=2,rotate=1", "state=6,head_dim=32,rank=3,rotate=0"],
    "mlp": ["inner=37,bias=false"],
    "swiglu": ["inner=37"],
    "moe": ["experts=5,active=3,inner=7", "experts=5,inner=7,shared=2,bias"],
}
#: What a layer reads of stands before it.
READ = {"cross-attn": "attn", "gmu": "mamba2"}
LAYERS = [layer for name in arch.names() for layer in (name, *(f"{name}[{odd}]" for odd in ODD_OPTIONS.get(name, ())))]


def counted_params(spec: str | Architecture) -> int:
    # `parameters()` gives a shared tensor once.
    return sum(parameter.numel() for parameter in build(spec, device="meta").parameters())


@pytest.mark.parametrize("name", HEADERS)
def test_parameters_with_every_header_option(name: str) -> None:
    assert model_cost(HEADERS[name]).total_params == counted_params(HEADERS[name])


@pytest.mark.parametrize("layer", LAYERS)
def test_parameters_of_every_mixer(layer: str) -> None:
    spec = f"d=256 vocab=11 norm=layer | {READ.get(layer, '')} {layer} {layer}"
    assert model_cost(spec).total_params == counted_params(spec)


@pytest.mark.parametrize("preset", ["gpt2-124m", "par-base", "fox-pro-125m", "lts-gpt2-titanxp-M12", "bert-base"])
def test_parameters_of_presets(preset: str) -> None:
    assert model_cost(preset).total_params == counted_params(preset)


@pytest.mark.parametrize("name", HEADERS)
def test_only_the_embedding_grows_with_the_vocabulary(name: str) -> None:
    given = architecture(HEADERS[name])
    larger = Architecture(dataclasses.replace(given.header, vocab=given.header.vocab + 7), given.layers)
    before, after = model_cost(given), model_cost(larger)
    assert after.decoder_params == before.decoder_params
    assert after.embedding_params > before.embedding_params
    blocks = build(given, device="meta").backbone
    inside = [*blocks.blocks.parameters(), *blocks.final_norm.parameters()]
    assert before.decoder_params == sum({id(p): p.numel() for p in inside}.values())


@pytest.mark.parametrize("name", [name for name in HEADERS if "auto-encoder" not in name])
def test_foxs_count_leaves_out_the_input_embedding_alone(name: str) -> None:
    """N is every parameter but the tables and projections that serve the input only."""
    model = build(HEADERS[name], device="meta")
    output = {id(p) for p in model.output.parameters()}
    only_input = sum(p.numel() for p in model.backbone.embedding.parameters() if id(p) not in output)
    assert model_cost(HEADERS[name]).params_without_input_embedding == counted_params(HEADERS[name]) - only_input


def test_an_autoencoder_ties_nothing() -> None:
    untied, tied = (model_cost(HEADERS[name]) for name in ("auto-encoder", "auto-encoder, tie ignored"))
    assert untied.params_without_input_embedding == untied.total_params - 24 * 31
    assert tied.params_without_input_embedding == tied.total_params - 24 * 31


def test_active_parameters_leave_out_idle_experts() -> None:
    cost = model_cost("d=24 vocab=31 | (attn[heads=2] moe[experts=5,active=2,inner=8])x2")
    assert cost.total_params - cost.active_params == 2 * (5 - 2) * 3 * 24 * 8


@torch.no_grad()
def counted_flops(spec: str, tokens: int) -> int:
    """Every matrix product of the forward pass. Fused attention is opaque to the counter; its math form is not."""
    model = build(spec)
    counter = FlopCounterMode(display=False)
    with counter, sdpa_kernel(SDPBackend.MATH):
        model(torch.zeros(1, tokens, dtype=torch.long))  # token 0 lies in the first band
    return counter.get_total_flops()


SDPA = {
    "gpt2": "d=32 vocab=19 pos=learned max_len=64 tie=true norm=layer | (attn[heads=2,pos=none,bias] mlp)x2",
    "llama": "d=32 vocab=19 | (attn[heads=2,kv_heads=1] swiglu)x2",
    "wide heads": "d=32 vocab=19 | attn[heads=3,head_dim=20,out_gate,out_norm,kv_shift,qk_norm=shared] mlp[inner=9]",
    "encoder": "d=32 vocab=19 kind=encoder head_bias=true | attn[heads=2,causal=false] mlp",
    "auto-encoder": "d=32 vocab=19 kind=autoencoder | attn[heads=2] swiglu[inner=5]",
}
OTHER = {
    "xl": "d=32 vocab=19 | (xl-attn[heads=4] mlp)x2",
    "xl, clamp": "d=32 vocab=19 | (xl-attn[heads=4,clamp=4,shared_bias] mlp)x2",
    "xl, clamp beyond the keys": "d=32 vocab=19 | xl-attn[heads=4,clamp=400] mlp",
    "xl, wide heads": "d=32 vocab=19 | xl-attn[heads=2,head_dim=7] swiglu",
    "narrow embedding": "d=32 vocab=19 d_embed=5 | mlp",
    "bands": f"d=32 {BANDS} | mlp",
    "bands, narrow": f"d=32 {BANDS} d_embed=8 tie=true | mlp",
    "bands, div 2": f"d=32 {BANDS} div=2 tie=true | mlp",
    "bands, div 4": f"d=32 {BANDS} div=4 d_embed=16 | mlp",
    "encoder, bands": f"d=32 {BANDS} kind=encoder div=2 | mlp",
    "nothing": "d=32 vocab=19 | identity",
}


@pytest.fixture
def paths_taken(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    taken: list[str] = []

    def noting(q: Any, k: Any, v: Any, **options: Any) -> Any:
        asked = {name: value for name, value in options.items() if name != "last"}  # of one step
        taken.append(attention_path(q, k, **asked))
        return attention(q, k, v, **options)

    monkeypatch.setattr(attn_module, "attention", noting)
    return taken


@pytest.mark.parametrize("tokens", [2, 37])
@pytest.mark.parametrize("name", SDPA)
def test_flops_of_attention(name: str, tokens: int, paths_taken: list[str]) -> None:
    assert model_cost(SDPA[name], seq=tokens).flops == counted_flops(SDPA[name], tokens)
    assert paths_taken, "no attention was run"
    assert set(paths_taken) == {"sdpa"}, "another path hides its products from the counter"


@pytest.mark.parametrize("name", OTHER)
def test_flops_without_softmax_attention(name: str) -> None:
    cost = model_cost(OTHER[name], seq=37)
    # A call scores the whole vocabulary, and token 0 lies in the first band.
    first_band = 2 * 37 * 32 * (cost.arch.header.d_embed or 32) if cost.arch.header.div > 1 else cost.input_flops
    assert cost.generation_flops - cost.input_flops + first_band == counted_flops(OTHER[name], 37)


@pytest.mark.parametrize(
    "layer",
    [
        "fox[heads=4]",
        "fox[heads=4,kv_heads=2,out_gate,out_norm,kv_shift,qk_norm=per-head]",
        "attn[heads=4,pos=alibi]",
        "fox[heads=4,forget=fixed]",
        "attn[heads=8]",
    ],
)
def test_flops_of_attention_by_its_definition(layer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Our tiles are opaque to the counter and skip what a mask hides; the declared count is the whole rectangle's."""

    def by_definition(*given: torch.Tensor, last: None, **options: Any) -> torch.Tensor:
        return attention_reference(*given, **options)

    monkeypatch.setattr(attn_module, "attention", by_definition)
    spec = f"d=32 vocab=19 | {layer} swiglu"
    assert model_cost(spec, seq=37).flops == counted_flops(spec, 37)


def test_a_window_bounds_what_attention_costs() -> None:
    costs = [architecture(f"d=32 | attn[heads=4{window}]").layers[0].cost(32, seq=37) for window in ("", ",window=5")]
    assert [cost.flops["mixing"] for cost in costs] == [4 * 37 * 37 * 32, 4 * 37 * 5 * 32]


@torch.no_grad()
def test_flops_after_a_memory() -> None:
    spec = "d=32 vocab=19 | (xl-attn[heads=4] mlp)x2"
    model = build(spec)
    _, memory = model.extend(torch.zeros(1, 11, dtype=torch.long), model.init_memory(1, tokens=11))
    counter = FlopCounterMode(display=False)
    with counter:
        model.extend(torch.zeros(1, 5, dtype=torch.long), memory)
    cost = model_cost(spec, seq=5, memory=11)
    assert cost.flops == counter.get_total_flops()
    assert cost.generation_flops < cost.flops


@pytest.mark.parametrize("options", ["heads=4", "heads=4,clamp=4", "heads=4,window=6", "heads=2,head_dim=7,window=3"])
@pytest.mark.parametrize("new", [1, 5])
@torch.no_grad()
def test_flops_of_relative_attention_after_a_state(options: str, new: int) -> None:
    """A state is a cache: keys and values of the tokens before are not computed again."""
    spec = f"d=32 {BANDS} | (xl-attn[{options}] mlp)x2"
    model = build(spec)
    _, state = model.extend(torch.zeros(1, 11, dtype=torch.long), model.init_state(1))
    counter = FlopCounterMode(display=False)
    with counter:
        model.extend(torch.zeros(1, new, dtype=torch.long), state)
    assert model_cost(spec, seq=new, memory=11).generation_flops == counter.get_total_flops()


@pytest.mark.parametrize("name", [name for name in OTHER if name.startswith("bands")])
@torch.no_grad()
def test_flops_of_an_adaptive_softmax_are_those_of_the_loss(name: str) -> None:
    """Each band's cost is counted on tokens of that band alone, and weighed by how often its words occur."""
    model, weight_R = build(OTHER[name]), [1 / rank for rank in range(1, 91)]  # 90 words: all of them core words
    expected = 0.0
    for first, last in ((0, 20), (20, 50), (50, 90)):
        tokens = torch.full((1, 37), first)
        counter = FlopCounterMode(display=False)
        with counter:
            model.loss(tokens, tokens)
        expected += counter.get_total_flops() * sum(weight_R[first:last]) / sum(weight_R)
    cost = model_cost(OTHER[name], seq=37)
    assert cost.flops == pytest.approx(expected, abs=2)
    assert cost.flops < cost.generation_flops


def test_words_occur_by_zipfs_law_with_two_regimes() -> None:
    """f(r) ∝ 1/r to rank 7873, then ∝ r^−1.77 (arXiv:1212.1362), summed rank by rank."""
    rank_R = np.arange(1, 267_736, dtype=float)
    frequency_R = np.where(rank_R <= 7873, 1 / rank_R, 7873**0.77 * rank_R**-1.77)
    bands = [part.sum() / frequency_R.sum() for part in np.split(frequency_R, [19997, 39997, 199997])]
    assert shares(267_735, (19997, 39997, 199997)) == pytest.approx(bands, rel=1e-6)


@pytest.mark.parametrize(("name", "printed"), [("txl-base", 27), ("sandwich-base", 27), ("par-base", 17)])
def test_par_prints_what_its_models_cost(name: str, printed: int) -> None:
    """Table A2, 64 new tokens after 640; the paper prints whole GFLOP."""
    cost = model_cost(name, seq=64, memory=640)
    assert cost.flops / 1e9 == pytest.approx(printed, rel=0.05)
    assert cost.flops - cost.output_flops + cost.full_output_flops > 1.4e9 * printed


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if arch.load(layer.split("[")[0]).kind == "sequence"])
@torch.no_grad()
def test_state_is_what_generation_holds(layer: str) -> None:
    spec = f"d=256 vocab=11 | {READ.get(layer, '')} {layer} mlp[inner=8] {layer}"
    model = build(spec)
    _, state = model.extend(torch.zeros(1, 13, dtype=torch.long), model.init_state(1))
    held = sum(value.numel() for part in state.layers for value in part.values() if value.is_floating_point())
    cost = model_cost(spec, seq=13)
    assert held == cost.fixed_state + cost.conv_state + cost.kv_cache
    assert cost.state_bytes(2) == 2 * held
    later = model_cost(spec, seq=4, memory=9)
    assert (later.fixed_state, later.conv_state, later.kv_cache) == (
        cost.fixed_state,
        cost.conv_state,
        cost.kv_cache,
    )


# LiteTransformerSearch's space: depth, width, and for every layer its heads and inner width.
Candidate = tuple[int, list[tuple[int, int]]]
FAMILIES: dict[str, tuple[str, str, Callable[..., Any]]] = {
    "gpt2": (
        "norm=layer tie=true",
        "attn[heads={heads},pos=none,bias] mlp[inner={inner}]",
        lambda heads: AttnOptions.sizes(heads=heads, pos="none", bias=True),
    ),
    "xl": (
        "norm=layer final_norm=false",
        "xl-attn[heads={heads}] mlp[inner={inner}]",
        lambda heads: XlAttnOptions.sizes(heads=heads),
    ),
    "xl, shared biases": (
        "norm=layer final_norm=false",
        "xl-attn[heads={heads},shared_bias] mlp[inner={inner}]",
        lambda heads: XlAttnOptions.sizes(heads=heads, shared_bias=True),
    ),
}


def candidates(count: int, seed: int, *, same_heads: bool) -> Iterator[Candidate]:
    draw = random.Random(seed)
    for _ in range(count):
        depth = draw.randint(2, 16)
        choose = [draw.choice((2, 4, 8)) for _ in range(depth)]
        # Layers that share biases have equal heads.
        heads = choose[:1] * depth if same_heads else choose
        yield draw.randrange(128, 961, 64), [(h, draw.randrange(128, 4033, 64)) for h in heads]


@pytest.mark.parametrize("family", FAMILIES)
def test_many_candidates_at_once_cost_what_each_does(family: str) -> None:
    header, pair, mixer = FAMILIES[family]
    drawn = list(candidates(50, seed=1, same_heads="shared" in family))
    assert len({len(layers) for _, layers in drawn}) > 5
    d, deepest = np.array([width for width, _ in drawn]), max(len(layers) for _, layers in drawn)
    columns: list[tuple[Any, Any]] = []
    for depth in range(deepest):
        # What a shallower candidate would have at this depth is never looked at.
        rows = [layers[depth] if depth < len(layers) else (2, 64) for _, layers in drawn]
        present = np.array([depth < len(layers) for _, layers in drawn]).astype(int)
        heads, inner = (np.array(column) for column in zip(*rows, strict=True))
        columns += [(mixer(heads), present), (MlpOptions.sizes(inner=inner), present)]
    found = decoder_costs(d, columns, norm=2 * d, seq=192, memory=32)
    for i, (width, layers) in enumerate(drawn):
        text = " ".join(pair.format(heads=heads, inner=inner) for heads, inner in layers)
        one = model_cost(f"d={width} vocab=1000 {header} | {text}", seq=192, memory=32)
        assert found["params"][i] + one.parts["final norm"] == one.decoder_params
        assert found["active_params"][i] == found["params"][i]
        assert found["flops"][i] == one.flops - one.output_flops
        assert found["kv_cache"][i] == one.kv_cache
        assert np.broadcast_to(found["fixed_state"], len(drawn))[i] == one.fixed_state == 0


def test_the_norm_of_a_header() -> None:
    assert norm_params(architecture("d=24 | mlp").header) == 24
    assert norm_params(architecture("d=24 norm=layer | mlp").header) == 48
