"""Folders as Hugging Face writes them, read back; what the mapping does not know is refused."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from plait.core.errors import UserError
from plait.interop import llama_family
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
MAMBA = {"vocab_size": 37, "hidden_size": 32, "state_size": 4, "num_hidden_layers": 2}
MAMBA2 = {**MAMBA, "num_heads": 8, "head_dim": 8, "n_groups": 1, "chunk_size": 16}
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
    # Contexts so short that some frequencies are slowed, some kept and some between within the 19 tokens compared.
    "llama 3: scaled frequencies": (
        "Llama",
        {**LLAMA, "head_dim": 16, "tie_word_embeddings": True,
         "rope_parameters": {"rope_type": "llama3", "rope_theta": 50.0, "factor": 8.0, "low_freq_factor": 1.0,
                             "high_freq_factor": 4.0, "original_max_position_embeddings": 64}},
    ),
    "smollm2": (
        "Llama",
        {**LLAMA, "tie_word_embeddings": True, "rms_norm_eps": 1e-5,
         "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}},
    ),
    "llama: linear scaling": (
        "Llama", {**LLAMA, "rope_parameters": {"rope_type": "linear", "rope_theta": 50.0, "factor": 2.0}},
    ),
    "qwen2": ("Qwen2", {**LLAMA, "rms_norm_eps": 1e-4}),
    "qwen2 tied, windows in its later layers": (
        "Qwen2",
        {**LLAMA, "tie_word_embeddings": True, "use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1},
    ),
    "qwen2: yarn": (
        "Qwen2",
        {**LLAMA, "head_dim": 16,
         "rope_parameters": {"rope_type": "yarn", "rope_theta": 50.0, "factor": 4.0, "beta_fast": 8.0,
                             "original_max_position_embeddings": 64}},
    ),
    "qwen3 with heads wider than d / heads": ("Qwen3", {**LLAMA, "head_dim": 24}),
    "qwen3 tied, biased": ("Qwen3", {**LLAMA, "head_dim": 8, "tie_word_embeddings": True, "attention_bias": True}),
    "mistral": ("Mistral", {**LLAMA, "sliding_window": 5}),
    "mistral without a window": ("Mistral", {**LLAMA, "sliding_window": None, "head_dim": 12}),
    "mamba": ("Mamba", MAMBA),
    "mamba untied, biased, narrow": (
        "Mamba",
        {**MAMBA, "tie_word_embeddings": False, "use_bias": True, "use_conv_bias": False, "expand": 1,
         "conv_kernel": 3, "time_step_rank": 5, "layer_norm_epsilon": 1e-3},
    ),
    "mamba2": ("Mamba2", MAMBA2),
    "mamba2 tied, in groups": ("Mamba2", {**MAMBA2, "tie_word_embeddings": True, "n_groups": 2, "conv_kernel": 3}),
}  # fmt: skip


def written(name, folder, **options):
    kind, fields = CASES[name]
    torch.manual_seed(0)
    model_class = "GPT2LMHeadModel" if kind == "GPT2" else f"{kind}ForCausalLM"
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


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("gpt2")])
@torch.no_grad()
def test_the_same_text_is_written(name, tmp_path):
    """Greedy tokens of a folder as transformers loads it, from prompts that start at the first position."""
    theirs = written(name, tmp_path).eval()
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
        ({"rope_scaling": {"rope_type": "yarn"}, "rope_parameters": None}, "'yarn' lacks factor"),
        ({"rope_scaling": {"rope_type": "longrope"}, "rope_parameters": None}, "is 'longrope'; linear, llama3, yarn"),
        (
            {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "attention_factor": 0.5}},
            "attention_factor=0.5",
        ),
        ({"rope_parameters": {"full_attention": {"rope_type": "default"}}}, "per layer type"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "layer_types"),
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


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("mamba", {"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ("mamba2", {"time_step_limit": [0.001, 0.1]}, r"time_step_limit=\(0.001, 0.1\)"),
        ("mamba2", {"use_bias": True}, "use_bias=True"),
        ("mamba2", {"layer_norm_epsilon": 1e-6}, "layer_norm_epsilon"),
        ("mamba2", {"num_heads": 7}, "7 heads of 8"),
        ("mistral", {"layer_types": ["full_attention", "sliding_attention"]}, "the same window in every layer"),
        ("qwen2", {"use_sliding_window": True, "layer_types": ["chunked_attention"] * 2}, "one per layer"),
        ("qwen3", {"use_sliding_window": True, "layer_types": ["sliding_attention"] * 2}, "sliding_window is None"),
        ("qwen3", {"model_type": "qwen3_moe"}, "Did you mean 'qwen3'"),
    ],
)
def test_so_it_is_in_the_other_families(name, change, message, tmp_path):
    written(next(case for case in CASES if case.startswith(name)), tmp_path)
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


def test_windows_begin_at_the_layer_that_is_named() -> None:
    config = {"model_type": "qwen2", "num_hidden_layers": 4, "use_sliding_window": True, "sliding_window": 16}
    assert llama_family._windows({**config, "max_window_layers": 2}) == [[], [], ["window=16"], ["window=16"]]


def test_the_length_before_scaling_is_looked_for_at_the_top_first() -> None:
    scaling = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    config = {"rope_scaling": scaling, "max_position_embeddings": 4096}
    assert "rope_len=1024" in llama_family._rotary(config)
    assert "rope_len=512" in llama_family._rotary({**config, "original_max_position_embeddings": 512})
    del scaling["original_max_position_embeddings"]
    assert "rope_len=4096" in llama_family._rotary(config)
