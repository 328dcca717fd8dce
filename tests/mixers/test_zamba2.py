"""Zamba2's layer against Hugging Face's, weight for weight, with two shared blocks called in turn."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from plait.model import build

LAYERS = ["linear_attention", "hybrid", "hybrid", "linear_attention", "hybrid"]


def theirs(adapted: bool) -> nn.Module:
    from transformers import Zamba2Config, Zamba2ForCausalLM

    config = Zamba2Config(
        vocab_size=31, hidden_size=32, num_hidden_layers=len(LAYERS), layers_block_type=LAYERS, mamba_d_state=8,
        n_mamba_heads=4, num_attention_heads=4, intermediate_size=24, num_mem_blocks=2, adapter_rank=3, chunk_size=8,
        use_shared_attention_adapter=adapted, use_mem_rope=adapted, use_cache=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model = Zamba2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


def ours(adapted: bool) -> nn.Module:
    mamba = "head_dim=16,state=8"
    given = f"{mamba},heads=4,inner=24,lora=3,{'lora_attn' if adapted else 'pos=none'}"
    a, b = (f"zamba2[{given},share={name}]" for name in "ab")
    return build(f"d=32 vocab=31 tie=true eps=1e-5 | mamba2[{mamba}] {a} {b} mamba2[{mamba}] {a}")


@torch.no_grad()
def copy(source: nn.Module, model: nn.Module) -> None:
    model.backbone.embedding.tables[0].weight.copy_(source.model.embed_tokens.weight)
    model.backbone.final_norm.weight.copy_(source.model.final_layernorm.weight)
    call = 0
    for block, layer, kind in zip(model.backbone.blocks, source.model.layers, LAYERS, strict=True):
        mixer, norm, state_space = block.mixer, block.norm, layer
        if kind == "hybrid":
            state_space, shared = layer.mamba_decoder, layer.shared_transformer
            attention, mlp = shared.self_attn, shared.feed_forward
            mixer.block_norm.weight.copy_(shared.input_layernorm.weight)
            mixer.mlp_norm.weight.copy_(shared.pre_ff_layernorm.weight)
            projections = (attention.q_proj, attention.k_proj, attention.v_proj)
            mixer.attention.qkv.weight.copy_(torch.cat([projection.weight for projection in projections]))
            mixer.attention.output.weight.copy_(attention.o_proj.weight)
            mixer.gate_up.weight.copy_(mlp.gate_up_proj.weight)
            mixer.down.weight.copy_(mlp.down_proj.weight)
            mixer.block_output.weight.copy_(layer.linear.weight)
            pairs = [(mixer.adapter, mlp.gate_up_proj_adapter_list[call])]
            if mixer.attention.adapters:
                lists = (
                    attention.linear_q_adapter_list,
                    attention.linear_k_adapter_list,
                    attention.linear_v_adapter_list,
                )
                pairs += [(mine, one[call]) for mine, one in zip(mixer.attention.adapters, lists, strict=True)]
            for mine, (down, up) in pairs:
                mine.down.weight.copy_(down.weight)
                mine.up.weight.copy_(up.weight)
            norm, mixer, call = mixer.norm, mixer.mamba, call + 1
        norm.weight.copy_(state_space.input_layernorm.weight)
        other = state_space.mamba
        mixer.input.weight.copy_(other.in_proj.weight)
        mixer.taps_CW.copy_(other.conv1d.weight[:, 0])
        mixer.taps_bias_C.copy_(other.conv1d.bias)
        mixer.log_rate_H.copy_(other.A_log)
        mixer.step_bias_H.copy_(other.dt_bias)
        mixer.skip_H.copy_(other.D)
        mixer.norm.weight.copy_(other.norm.weight)
        mixer.output.weight.copy_(other.out_proj.weight)


@pytest.mark.parametrize("adapted", [False, True])
@torch.no_grad()
def test_logits_and_parameters_are_hugging_faces(adapted: bool) -> None:
    source, model = theirs(adapted), ours(adapted)
    copy(source, model)
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in source.parameters())
    tokens = torch.randint(31, (2, 19), generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(tokens), source(tokens).logits, rtol=2e-4, atol=2e-4)


def test_a_call_begins_as_the_block_itself() -> None:
    model = ours(adapted=True)
    first, last = (model.backbone.blocks[place].mixer for place in (1, 4))
    assert first.gate_up is last.gate_up
    assert first.attention.qkv is last.attention.qkv
    assert first.adapter is not last.adapter
    x = torch.randn(2, 5, 32)
    torch.testing.assert_close(first._block(x), first.block_output(first.down(_gated(first, x))))


def _gated(mixer: nn.Module, x: torch.Tensor) -> torch.Tensor:
    gate, value = mixer.gate_up(mixer.mlp_norm(x)).chunk(2, dim=-1)
    return nn.functional.gelu(gate) * value
