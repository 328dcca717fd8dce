"""Folders as Hugging Face writes them, read back; what the mapping does not know is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from plait.core.errors import UserError
from plait.interop.hf import export_hf
from plait.interop.import_hf import import_hf
from plait.model.generation import Generation

transformers = pytest.importorskip("transformers")

GPT2 = {"vocab_size": 37, "n_positions": 24, "n_embd": 32, "n_layer": 2, "n_head": 4}
LLAMA = {
    "vocab_size": 37, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 64,
}  # fmt: skip
OPT = {
    "vocab_size": 37, "hidden_size": 32, "ffn_dim": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 24, "word_embed_proj_dim": 32,
}  # fmt: skip
CASES = {
    "gpt2": ("GPT2", GPT2),
    "gpt2 untied, narrow": (
        "GPT2", {**GPT2, "tie_word_embeddings": False, "n_inner": 40, "activation_function": "relu"},
    ),
    "opt": ("OPT", OPT),
    "opt untied, gelu": ("OPT", {**OPT, "tie_word_embeddings": False, "activation_function": "gelu"}),
    "llama": ("Llama", LLAMA),
    "llama tied, wide heads, biased": (
        "Llama",
        {**LLAMA, "tie_word_embeddings": True, "head_dim": 16, "attention_bias": True, "rms_norm_eps": 1e-3,
         "rope_parameters": {"rope_type": "default", "rope_theta": 500.0}},
    ),
}  # fmt: skip


def written(name, folder, **options):
    kind, fields = CASES[name]
    torch.manual_seed(0)
    model_class = {"GPT2": "GPT2LMHeadModel", "Llama": "LlamaForCausalLM", "OPT": "OPTForCausalLM"}[kind]
    theirs = getattr(transformers, model_class)(getattr(transformers, f"{kind}Config")(**fields)).eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    theirs.save_pretrained(folder, **options)
    return theirs


@pytest.mark.parametrize("name", CASES)
@torch.no_grad()
def test_the_same_logits_and_back_again(name, tmp_path):
    theirs = written(name, tmp_path / "theirs")
    ours, tokenizer = import_hf(tmp_path / "theirs")
    assert tokenizer is None
    tokens = torch.randint(37, (2, 19))
    expected = theirs(tokens).logits
    torch.testing.assert_close(ours(tokens), expected, rtol=0, atol=1e-5)
    pytest.importorskip("plait.interop.hf_model")
    export_hf(ours, None, tmp_path / "ours")
    again = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "ours")
    assert again.config.num_hidden_layers == theirs.config.num_hidden_layers == 2
    torch.testing.assert_close(again(tokens).logits, expected, rtol=0, atol=1e-5)


@torch.no_grad()
def test_opt_writes_the_same_text(tmp_path):
    """Greedy tokens of a folder as transformers loads it, from prompts that start at the table's first position."""
    theirs = written("opt", tmp_path).eval()
    ours = import_hf(tmp_path)[0]
    for prompt in ([5, 9, 3], [7], [1, 2, 3, 4, 5, 6, 8]):
        options = {"max_new_tokens": 12, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
        found = theirs.generate(torch.tensor([prompt]), **options)[0, len(prompt) :].tolist()
        assert Generation(ours, [prompt], tokens=12).run().rows[0] == found


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"do_layer_norm_before": False}, "do_layer_norm_before=False"),
        ({"word_embed_proj_dim": 16}, "word_embed_proj_dim=16"),
        ({"enable_bias": False}, "enable_bias=False"),
    ],
)
def test_other_kinds_of_opt_are_refused(change, message, tmp_path):
    written("opt", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=message):
        import_hf(tmp_path)


@torch.no_grad()
def test_shards_and_files_without_the_prefix(tmp_path):
    theirs = written("gpt2", tmp_path / "shards", max_shard_size="20KB")
    assert len(list((tmp_path / "shards").glob("*.safetensors"))) > 1
    tokens = torch.randint(37, (2, 19))
    torch.testing.assert_close(import_hf(tmp_path / "shards")[0](tokens), theirs(tokens).logits, rtol=0, atol=1e-5)
    bare = tmp_path / "bare"
    written("gpt2", bare)
    names = {name.removeprefix("transformer."): value for name, value in load_file(bare / "model.safetensors").items()}
    names["h.0.attn.bias"] = torch.ones(1, 1, 24, 24)  # the mask that older files hold
    save_file(names, bare / "model.safetensors")
    torch.testing.assert_close(import_hf(bare)[0](tokens), theirs(tokens).logits, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "lama"}, "Did you mean 'llama'"),
        ({"rope_scaling": {"rope_type": "yarn"}, "rope_parameters": None}, "yarn"),
        ({"mlp_bias": True}, "mlp_bias=True"),
        ({"num_attention_heads": "many"}, "many"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"num_hidden_layers": 3}, "layers.2"),
        ({"num_hidden_layers": 1}, "does not explain: layers.1"),
        ({"intermediate_size": 40}, "size mismatch"),
    ],
)
def test_what_the_mapping_does_not_know_is_refused(change, message, tmp_path):
    written("llama", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(UserError, match=message):
        import_hf(tmp_path)


def test_a_config_without_its_sizes_is_refused(tmp_path):
    written("llama", tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(UserError, match="lacks 'num_attention_heads'"):
        import_hf(tmp_path)


def test_only_safetensors_are_read(tmp_path):
    written("llama", tmp_path)
    weights = tmp_path / "model.safetensors"
    torch.save(load_file(weights), tmp_path / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(UserError, match="pickle"):
        import_hf(tmp_path)


@pytest.mark.parametrize("damage", ["config", "weights", "nothing there"])
def test_damage_is_said(damage, tmp_path):
    written("llama", tmp_path)
    if damage == "config":
        (tmp_path / "config.json").write_text("{")
    elif damage == "weights":
        file = tmp_path / "model.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
    folder = tmp_path / "none" if damage == "nothing there" else tmp_path
    with pytest.raises(UserError, match=r"cannot be read|no config\.json"):
        import_hf(folder)
