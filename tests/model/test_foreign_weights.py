"""Other libraries as oracle: a tiny random model of theirs, its weights copied over, the same logits."""

from __future__ import annotations

import pytest
import torch

from plait.interop.import_hf import copy_weights, spec_text
from plait.model import build

transformers = pytest.importorskip("transformers")


def same_logits(theirs: torch.nn.Module) -> None:
    for parameter in theirs.parameters():
        parameter.add_(0.05 * torch.randn_like(parameter))  # biases and norms must matter, too
    config = theirs.config.to_dict()
    ours = build(spec_text(config))
    copy_weights(ours, config, dict(theirs.state_dict()))
    tokens = torch.randint(37, (2, 19))
    torch.testing.assert_close(ours(tokens), theirs(tokens).logits, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_gpt2_logits_are_hugging_faces():
    config = transformers.GPT2Config(vocab_size=37, n_positions=24, n_embd=32, n_layer=3, n_head=4)
    torch.manual_seed(0)
    same_logits(transformers.GPT2LMHeadModel(config).eval())


@pytest.mark.parametrize("kv_heads", [4, 2])
@torch.no_grad()
def test_llama_logits_are_hugging_faces(kv_heads):
    config = transformers.LlamaConfig(
        vocab_size=37, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4,
        num_key_value_heads=kv_heads, max_position_embeddings=64, rms_norm_eps=1e-6, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    same_logits(transformers.LlamaForCausalLM(config).eval())
