"""Models as one GGUF file, for llama.cpp: Llama, Qwen2 and Qwen3, if the model is exactly equivalent.

Weights are written in float32 (16-bit weights keep their type); quantise the file with llama.cpp's tools. For Llama,
llama.cpp rotates neighbouring dimensions of queries and keys, where Hugging Face's class rotates halves, so their rows
are interleaved. A tokenizer of bytes, or a trained BPE on bytes, is included; the format has no equivalent of others,
and then the file states that it has none.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.core.files import atomic_write, check_free
from plait.data import Tokenizer
from plait.data.tokenizers import Bytes
from plait.data.trained_tokenizers import FILE, HuggingFace
from plait.interop.hf import logits_gap, weights_of, write_tokenizer
from plait.interop.hf_config import Config, Weights
from plait.interop.import_hf import copy_weights, spec_text
from plait.interop.native import native_class
from plait.model import build
from plait.model.language_model import Encoder, LanguageModel

KINDS = ("llama", "qwen2", "qwen3")
TOP = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
PARTS = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
NORMAL, CONTROL, UNUSED = 1, 3, 5  # kinds of tokens


def export_gguf(
    model: LanguageModel | Encoder, tokenizer: Tokenizer | None, path: Path, *, name: str = "", force: bool = False
) -> bool:
    """Write the file; returns whether it includes the tokenizer."""
    if find_spec("gguf") is None:
        raise UserError("this needs the `gguf` package: pip install 'plait[gguf]'.")
    from gguf import GGUFWriter

    config = _config(model)
    check_free(path, force=force)
    vocabulary = _vocabulary(tokenizer, model.arch.header.vocab) if tokenizer is not None else None
    with atomic_write(path) as draft:
        writer = GGUFWriter(draft, config["model_type"])
        _describe(writer, config, name)
        if vocabulary is None:
            writer.add_tokenizer_model("no_vocab")
        else:
            tokens, kinds, merges = vocabulary
            writer.add_tokenizer_model("gpt2")
            writer.add_tokenizer_pre("gpt-2")
            writer.add_token_list(tokens)
            writer.add_token_types(kinds)
            writer.add_token_merges(merges)
            writer.add_add_bos_token(False)
            end = tokenizer.end if tokenizer is not None else None
            if end is not None:
                writer.add_eos_token_id(end)
        for theirs, value in _tensors(model, config).items():
            writer.add_tensor(theirs, value.numpy())
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return vocabulary is not None


def check_gguf(model: LanguageModel | Encoder, path: Path) -> float:
    """Read the file with the format's own reader and compare logits; a difference is an error."""
    config = _config(model)
    again = build(spec_text(config))
    assert isinstance(again, LanguageModel)
    copy_weights(again, config, read_gguf(path))
    gap = logits_gap(model, again)
    if not gap <= 1e-8:
        raise UserError(f"{path} was written, but its weights give different logits (by {gap:.3g} of their deviation).")
    return gap


def read_gguf(path: Path) -> Weights:
    """The weights of a Llama, Qwen2 or Qwen3 under Hugging Face's names."""
    from gguf import GGUFReader

    reader = GGUFReader(path)

    def field(key: str) -> Any:
        entry = reader.fields.get(key)
        return None if entry is None else entry.contents()

    kind = field("general.architecture")
    if kind not in KINDS:
        raise UserError(f"{path} holds a model of architecture '{kind}'; known: {', '.join(KINDS)}.")
    heads = {"attn_q": field(f"{kind}.attention.head_count"), "attn_k": field(f"{kind}.attention.head_count_kv")}
    names = {theirs: ours for ours, theirs in {**TOP, **PARTS}.items()}
    weights: Weights = {}
    for tensor in reader.tensors:
        *block, part, ending = tensor.name.split(".")
        value = torch.from_numpy(tensor.data.copy())
        if kind == "llama" and part in heads:
            value = _halved(value, heads[part])
        where = f"model.layers.{block[1]}." if block else ""
        weights[f"{where}{names[part]}.{ending}"] = value
    return weights


def _config(model: LanguageModel | Encoder) -> Config:
    native = native_class(model.arch)
    kind = native[1]["model_type"] if native is not None else ""
    if native is None or kind not in KINDS:
        raise UserError(
            f"{model.arch.text} is not a Llama, Qwen2 or Qwen3 (alternating rotary attention and SwiGLU, RMS norm), "
            "which a GGUF file can hold: export it with --to hf or --to onnx."
        )
    config = native[1]
    if config.get("use_sliding_window") or config["rope_parameters"]["rope_type"] not in ("default", "linear"):
        raise UserError("GGUF files cannot hold windows or rotary scaling other than linear: export with --to hf.")
    return config


def _describe(writer: Any, config: Config, name: str) -> None:
    rotary = config["rope_parameters"]
    writer.add_name(name or "plait")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(float(rotary["rope_theta"]))
    writer.add_layer_norm_rms_eps(float(config["rms_norm_eps"]))
    writer.add_vocab_size(config["vocab_size"])
    writer.add_file_type(0)
    if rotary["rope_type"] == "linear":
        from gguf import RopeScalingType

        writer.add_rope_scaling_type(RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(float(rotary["factor"]))


def _tensors(model: LanguageModel | Encoder, config: Config) -> Weights:
    native = native_class(model.arch)
    assert native is not None
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    tensors: Weights = {}
    for name, value in native[0].weights(model.arch, weights_of(model)).items():
        source, _, ending = name.rpartition(".")
        value = value.detach().cpu().contiguous().float()  # NumPy has no bfloat16
        if source in TOP:
            tensors[f"{TOP[source]}.{ending}"] = value
            continue
        _, _, number, part = source.split(".", 3)
        theirs = PARTS[part]
        if config["model_type"] == "llama" and theirs in heads:
            value = _interleaved(value, heads[theirs])
        tensors[f"blk.{number}.{theirs}.{ending}"] = value
    return tensors


def _interleaved(rows: Tensor, heads: int) -> Tensor:
    """Interleave the two halves of each head's rows: row i of the first half, then row i of the second."""
    turned: Tensor = rows.unflatten(0, (heads, 2, -1)).transpose(1, 2)
    return turned.flatten(0, 2).contiguous()


def _halved(rows: Tensor, heads: int) -> Tensor:
    """Undo the interleaving."""
    turned: Tensor = rows.unflatten(0, (heads, -1, 2)).transpose(1, 2)
    return turned.flatten(0, 2).contiguous()


def _vocabulary(tokenizer: Tokenizer, vocab: int) -> tuple[list[str], list[int], list[str]] | None:
    """Tokens in the order of their ids, their kinds, and merges; None for a tokenizer that is not a BPE on bytes."""
    if not isinstance(tokenizer, (Bytes, HuggingFace)):
        return None
    with TemporaryDirectory() as folder:
        write_tokenizer(tokenizer, Path(folder))
        content = json.loads((Path(folder) / FILE).read_text(encoding="utf-8"))
    if content["model"]["type"] != "BPE" or (content.get("pre_tokenizer") or {}).get("type") != "ByteLevel":
        return None
    added = {entry["id"]: entry["content"] for entry in content.get("added_tokens") or ()}
    by_id = {number: token for token, number in content["model"]["vocab"].items()} | added
    tokens = [by_id.get(number, f"[PAD{number}]") for number in range(vocab)]
    kinds = [CONTROL if n in added else NORMAL if n in by_id else UNUSED for n in range(vocab)]
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"].get("merges", ())]
    return tokens, kinds, merges
