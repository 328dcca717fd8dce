"""Other libraries as oracle: a tiny random model of theirs, its weights copied over, the same logits."""

from __future__ import annotations

import pytest
import torch

from plait.model import build

transformers = pytest.importorskip("transformers")


@torch.no_grad()
def test_gpt2_logits_are_hugging_faces():
    config = transformers.GPT2Config(vocab_size=37, n_positions=24, n_embd=32, n_layer=3, n_head=4)
    torch.manual_seed(0)
    theirs = transformers.GPT2LMHeadModel(config).eval()
    for parameter in theirs.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))  # biases and norms must matter, too
    ours = build(
        "d=32 vocab=37 pos=learned max_len=24 tie=true norm=layer eps=1e-5"
        " | (attn[heads=4,pos=none,bias] mlp[act=gelu-tanh])x3"
    )
    backbone, source = ours.backbone, theirs.transformer
    backbone.embedding.tables[0].weight.copy_(source.wte.weight)
    backbone.position.weight.copy_(source.wpe.weight)
    backbone.final_norm.load_state_dict(source.ln_f.state_dict())
    for i, block in enumerate(source.h):
        attention, mlp = backbone.blocks[2 * i], backbone.blocks[2 * i + 1]
        attention.norm.load_state_dict(block.ln_1.state_dict())
        mlp.norm.load_state_dict(block.ln_2.state_dict())
        # GPT-2 stores its linear maps transposed.
        for linear, conv in (
            (attention.mixer.qkv, block.attn.c_attn),
            (attention.mixer.output, block.attn.c_proj),
            (mlp.mixer.up, block.mlp.c_fc),
            (mlp.mixer.down, block.mlp.c_proj),
        ):
            linear.weight.copy_(conv.weight.T)
            linear.bias.copy_(conv.bias)
    tokens = torch.randint(37, (2, 19))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kv_heads", [4, 2])
@torch.no_grad()
def test_llama_logits_are_hugging_faces(kv_heads):
    config = transformers.LlamaConfig(
        vocab_size=37, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=kv_heads, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config).eval()
    for parameter in theirs.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))
    ours = build(f"d=32 vocab=37 | (attn[heads=4,kv_heads={kv_heads}] swiglu[inner=48])x3")
    ours.backbone.embedding.tables[0].weight.copy_(theirs.model.embed_tokens.weight)
    ours.backbone.final_norm.weight.copy_(theirs.model.norm.weight)
    ours.output.weight.copy_(theirs.lm_head.weight)
    for i, layer in enumerate(theirs.model.layers):
        attention, mlp = ours.backbone.blocks[2 * i], ours.backbone.blocks[2 * i + 1]
        attention.norm.weight.copy_(layer.input_layernorm.weight)
        mlp.norm.weight.copy_(layer.post_attention_layernorm.weight)
        source = layer.self_attn
        attention.mixer.qkv.weight.copy_(torch.cat([source.q_proj.weight, source.k_proj.weight, source.v_proj.weight]))
        attention.mixer.output.weight.copy_(source.o_proj.weight)
        mlp.mixer.gate_up.weight.copy_(torch.cat([layer.mlp.gate_proj.weight, layer.mlp.up_proj.weight]))
        mlp.mixer.down.weight.copy_(layer.mlp.down_proj.weight)
    tokens = torch.randint(37, (2, 19))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)
