"""Llama, Qwen2, Qwen3 and Mistral: rotary attention and a SwiGLU under RMS norms, read and written.

Differences: Qwen2 has biases on queries, keys and values, Qwen3 a norm on queries and keys, Mistral a window, which
later layers of Qwen may also have. Llama 3.x scales down its rotary frequencies. SmolLM2 is a Llama.
"""

from __future__ import annotations

from functools import partial

import torch

from plait.core.errors import UserError
from plait.interop.hf_config import (
    Config,
    Family,
    Native,
    Weights,
    in_runs,
    output_weights,
    require,
    require_absent,
    tie,
)  # fmt: skip
from plait.mixers.attn import AttnOptions
from plait.mixers.mlp import SwigluOptions
from plait.model.architecture import Architecture

LONGEST = 4096  # positions stated in a config; rotary positions have no limit
WINDOWED = "sliding_attention"
WHOLE = "full_attention"
#: Default for configs without `head_dim` or `sliding_window`.
QWEN3_HEAD = 128
DEFAULT_WINDOW = 4096


def spec_of(config: Config) -> str:
    kind = config["model_type"]
    require(config, "hidden_act", "silu")
    require(config, "mlp_bias", False)
    require(config, "rope_interleaved", False)
    require_absent(config, "quantization_config")
    heads = config["num_attention_heads"]
    # Hugging Face's classes have their own defaults for missing fields; null means as many as query heads.
    kv_heads = config.get("num_key_value_heads") if kind == "llama" else config["num_key_value_heads"]
    options = [f"heads={heads}", f"kv_heads={kv_heads or heads}", *_rotary(config)]
    width = config.get("head_dim") or (QWEN3_HEAD if kind == "qwen3" else None)
    options += [f"head_dim={width}"] if width else []
    if kind == "qwen2":
        require(config, "attention_bias", True)
        options.append("qkv_bias")
    elif config.get("attention_bias"):
        options.append("bias")
    eps = config.get("rms_norm_eps", 1e-6)
    options += ["qk_norm=shared", f"qk_eps={eps}"] if kind == "qwen3" else []
    mlp = f"swiglu[inner={config['intermediate_size']}]"
    layers = [f"attn[{','.join([*options, *window])}] {mlp}" for window in _windows(config)]
    return (
        f"d={config['hidden_size']} vocab={config['vocab_size']} tie={tie(config, False)} eps={eps} | {in_runs(layers)}"
    )


def _windows(config: Config) -> list[list[str]]:
    """The window options of each layer."""
    kind, depth = config["model_type"], config["num_hidden_layers"]
    size = None if kind == "llama" else config.get("sliding_window", DEFAULT_WINDOW)
    if kind == "mistral":
        types = [WINDOWED if size else WHOLE] * depth
        if config.get("layer_types", types) != types:
            raise UserError("layer_types in a mistral config: this class has the same window in every layer.")
    elif kind == "llama" or not config.get("use_sliding_window", False):
        types = [WHOLE] * depth
        if config.get("layer_types", types) != types:
            raise UserError("layer_types in the config has windows, which its other fields say are not used.")
    else:
        first = config.get("max_window_layers", 28)
        types = config.get("layer_types") or [WINDOWED if i >= first and size else WHOLE for i in range(depth)]
    if len(types) != depth or not set(types) <= {WINDOWED, WHOLE}:
        raise UserError(f"layer_types in the config: {WHOLE} and {WINDOWED} can be imported, one per layer ({depth}).")
    if WINDOWED in types and not size:
        raise UserError(f"layer_types in the config has {WINDOWED}, but sliding_window is {size!r}.")
    return [[f"window={size}"] if kind == WINDOWED else [] for kind in types]


#: rope_type → Hugging Face's field → our option and the value of a missing field (None: required).
_SCALING: dict[str, dict[str, tuple[str, float | None]]] = {
    "linear": {"factor": ("rope_factor", None)},
    "llama3": {
        "factor": ("rope_factor", None),
        "original_max_position_embeddings": ("rope_len", None),
        "low_freq_factor": ("rope_low", None),
        "high_freq_factor": ("rope_high", None),
    },
    "yarn": {
        "factor": ("rope_factor", None),
        "original_max_position_embeddings": ("rope_len", None),
        "beta_slow": ("rope_low", 1.0),
        "beta_fast": ("rope_high", 32.0),
    },
}


def _rotary(config: Config) -> list[str]:
    """Base and scaling: at the top and in `rope_scaling` of older configs, in `rope_parameters` of newer ones."""
    rotary = {**(config.get("rope_scaling") or {}), **(config.get("rope_parameters") or {})}
    if any(isinstance(value, dict) for value in rotary.values()):
        raise UserError("rope_parameters per layer type in the config: only one for all layers can be imported.")
    kind = rotary.get("rope_type", rotary.get("type", "default"))
    theta = rotary.get("rope_theta") or config.get("rope_theta") or 10000.0
    options = [f"theta={float(theta)}"]
    if (rotary.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0) != 1.0:
        raise UserError("partial_rotary_factor in the config: only rotation of the whole head can be imported.")
    if kind == "default":
        return options
    if kind not in _SCALING:
        known = ", ".join(_SCALING)
        raise UserError(f"the config's rope scaling is '{kind}'; {known} can be imported.")
    for field in ("attention_factor", "mscale", "mscale_all_dim"):
        require_absent(rotary, field)
    require(rotary, "truncate", True)
    options.append(f"rope_scaling={kind}")
    for field, (option, default) in _SCALING[kind].items():
        value = rotary.get(field) or default
        if field == "original_max_position_embeddings":
            value = config.get(field) or value or config.get("max_position_embeddings")
        if value is None:
            raise UserError(f"rope scaling by '{kind}' lacks {field} in the config.")
        options.append(f"{option}={value}")
    return options


def ours_of(config: Config, theirs: Weights) -> Weights:
    ours = {
        "backbone.embedding.tables.0.weight": theirs.pop("embed_tokens.weight"),
        "backbone.final_norm.weight": theirs.pop("norm.weight"),
    }
    bias, qkv_bias = bool(config.get("attention_bias")), config["model_type"] == "qwen2"
    for i in range(config["num_hidden_layers"]):
        attention, mlp, layer = f"backbone.blocks.{2 * i}", f"backbone.blocks.{2 * i + 1}", f"layers.{i}"
        ours[f"{attention}.norm.weight"] = theirs.pop(f"{layer}.input_layernorm.weight")
        ours[f"{mlp}.norm.weight"] = theirs.pop(f"{layer}.post_attention_layernorm.weight")
        for kind in ("weight", "bias") if bias or qkv_bias else ("weight",):
            parts = [theirs.pop(f"{layer}.self_attn.{name}_proj.{kind}") for name in ("q", "k", "v")]
            ours[f"{attention}.mixer.qkv.{kind}"] = torch.cat(parts)
            if kind == "weight" or not qkv_bias:
                ours[f"{attention}.mixer.output.{kind}"] = theirs.pop(f"{layer}.self_attn.o_proj.{kind}")
        if config["model_type"] == "qwen3":
            for name, short in (("query_norm", "q_norm"), ("key_norm", "k_norm")):
                ours[f"{attention}.mixer.{name}.weight"] = theirs.pop(f"{layer}.self_attn.{short}.weight")
        gate_up = [theirs.pop(f"{layer}.mlp.{name}_proj.weight") for name in ("gate", "up")]
        ours[f"{mlp}.mixer.gate_up.weight"] = torch.cat(gate_up)
        ours[f"{mlp}.mixer.down.weight"] = theirs.pop(f"{layer}.mlp.down_proj.weight")
    return ours


def _pairs(arch: Architecture) -> tuple[list[AttnOptions], SwigluOptions]:
    """The attention of every layer and the first channel mixer."""
    attentions = [layer for layer in arch.layers[::2] if isinstance(layer, AttnOptions)]
    channel = arch.layers[1] if len(arch.layers) > 1 else None
    if len(attentions) * 2 != len(arch.layers) or not isinstance(channel, SwigluOptions):
        raise UserError("not alternating attention and SwiGLU")
    return attentions, channel


def config_of(kind: str, arch: Architecture) -> Config:
    attentions, channel = _pairs(arch)
    attention, header = attentions[0], arch.header
    config: Config = {
        "model_type": kind,
        "hidden_size": header.d,
        "vocab_size": header.vocab,
        "num_hidden_layers": len(attentions),
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.groups(),
        "head_dim": attention.head_width(header.d),
        "intermediate_size": int(channel.inner_width(header.d)),
        "rms_norm_eps": header.eps,
        "hidden_act": "silu",
        "tie_word_embeddings": header.tie,
        **_rotary_config(attention),
    }
    if kind in ("llama", "qwen3"):
        config["attention_bias"] = attention.bias
    if kind == "llama":
        config["mlp_bias"] = False
    windows = [layer.window for layer in attentions]
    if kind == "mistral":
        config["sliding_window"] = windows[0] or None
    elif kind != "llama":
        size = max(windows)
        config |= {"use_sliding_window": bool(size), "sliding_window": size or None, "max_window_layers": 0}
        config["layer_types"] = [WINDOWED if window else WHOLE for window in windows]
    return config


def _rotary_config(attention: AttnOptions) -> Config:
    rotary: Config = {"rope_type": "default", "rope_theta": attention.theta}
    config: Config = {"rope_theta": attention.theta, "rope_parameters": rotary, "max_position_embeddings": LONGEST}
    if attention.rope_scaling != "none":
        fields = _SCALING[attention.rope_scaling]
        rotary |= {field: getattr(attention, option) for field, (option, _) in fields.items()}
        rotary["rope_type"] = attention.rope_scaling
        config["rope_scaling"] = rotary
        config["max_position_embeddings"] = int(attention.rope_factor * attention.rope_len)
    return config


def theirs_of(arch: Architecture, ours: Weights) -> Weights:
    attentions, _ = _pairs(arch)
    first = attentions[0]
    width = int(first.head_width(arch.header.d))
    rows = [width * first.heads] + [width * int(first.groups())] * 2
    theirs = {
        "model.embed_tokens.weight": ours["backbone.embedding.tables.0.weight"],
        "model.norm.weight": ours["backbone.final_norm.weight"],
        **output_weights(arch, ours),
    }
    for i in range(len(attentions)):
        block, mlp, layer = f"backbone.blocks.{2 * i}", f"backbone.blocks.{2 * i + 1}", f"model.layers.{i}"
        theirs[f"{layer}.input_layernorm.weight"] = ours[f"{block}.norm.weight"]
        theirs[f"{layer}.post_attention_layernorm.weight"] = ours[f"{mlp}.norm.weight"]
        for kind in ("weight", "bias") if first.bias or first.qkv_bias else ("weight",):
            parts = ours[f"{block}.mixer.qkv.{kind}"].split(rows)
            theirs |= {f"{layer}.self_attn.{name}_proj.{kind}": part for name, part in zip("qkv", parts, strict=True)}
            if kind == "weight" or first.bias:
                theirs[f"{layer}.self_attn.o_proj.{kind}"] = ours[f"{block}.mixer.output.{kind}"]
        if first.qk_norm == "shared":
            theirs[f"{layer}.self_attn.q_norm.weight"] = ours[f"{block}.mixer.query_norm.weight"]
            theirs[f"{layer}.self_attn.k_norm.weight"] = ours[f"{block}.mixer.key_norm.weight"]
        gate, up = ours[f"{mlp}.mixer.gate_up.weight"].chunk(2)
        theirs |= {f"{layer}.mlp.gate_proj.weight": gate, f"{layer}.mlp.up_proj.weight": up}
        theirs[f"{layer}.mlp.down_proj.weight"] = ours[f"{mlp}.mixer.down.weight"]
    return theirs


FAMILIES = {
    kind: Family(spec_of, ours_of, "model.", (".rotary_emb.inv_freq",))
    for kind in ("llama", "qwen2", "qwen3", "mistral")
}
NATIVE = {
    kind: Native(class_name, partial(config_of, kind), theirs_of)
    for kind, class_name in (
        ("llama", "LlamaForCausalLM"),
        ("mistral", "MistralForCausalLM"),
        ("qwen2", "Qwen2ForCausalLM"),
        ("qwen3", "Qwen3ForCausalLM"),
    )
}
