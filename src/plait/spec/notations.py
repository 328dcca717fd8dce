"""Layers in other notations: Megatron's pattern, Hugging Face's layer types, flash-linear-attention's layers.

    megatron       one symbol per mixer: `--hybrid-layer-pattern M-M*-` (read back by `megatron:M-M*-`)
    huggingface    one word per layer, a sequence mixer with what follows it: full_attention, sliding_attention, …
                   (`layer_types` means the same)
    fla            which layers of a model of one recurrent mixer are softmax attention:
                   {"model_type": "gla", "num_hidden_layers": 8, "attn": {"layers": [3, 7]}}

A notation gives the order of mixers, not their sizes. A configuration (a model's config.json) has both: `from_config`
reads widths, heads and layers, or only the layers if it contains nothing else, which is how the last two are read back.
Hugging Face has one word for all recurrent layers; the configuration's `model_type` determines which mixer they are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.registry import require_known

if TYPE_CHECKING:
    from plait.spec.nodes import Layer

NOTATIONS = ("megatron", "huggingface", "layer_types", "fla")
MEGATRON = {
    "mamba2": "M",
    "gated-deltanet": "G",
    "attn": "*",
    "sparse-attn": "D",
    "mla": "+",
    "mlp": "-",
    "swiglu": "-",
    "moe": "E",
}
CHANNEL = ("mlp", "swiglu", "moe", "identity")
#: Hugging Face's layer types; linear_attention for every other mixer.
LAYER_TYPES = {
    "mamba": "mamba",
    "mamba2": "mamba",
    "mla": "full_attention",
    "fox": "full_attention",
    "xl-attn": "full_attention",
    "sparse-attn": "indexed_attention",
}
#: Mixers that depend on another layer.
TIED = ("cross-attn", "gmu", "zamba2")


def written(layers: Sequence[Layer], notation: str) -> str:
    """The layers in a notation; a `UserError` if it has no symbol for one of them."""
    require_known(notation, NOTATIONS, "unknown notation")
    tied = sorted({layer.name for layer in layers if layer.name in TIED or "share" in dict(layer.options)})
    if tied:
        raise UserError(
            f"{notation} has no notation for layers that share weights or read from others: {', '.join(tied)}."
        )
    if notation == "megatron":
        missing = sorted({layer.name for layer in layers} - set(MEGATRON))
        if missing:
            raise UserError(f"Megatron has no symbol for {', '.join(missing)}; it has {' '.join(MEGATRON)}.")
        return "".join(MEGATRON[layer.name] for layer in layers)
    sequence = [layer for layer in layers if layer.name not in CHANNEL]
    if notation in ("huggingface", "layer_types"):
        return json.dumps([_layer_type(layer) for layer in sequence])
    beside = sorted({layer.name for layer in sequence if layer.branches})
    if beside:
        raise UserError(f"flash-linear-attention has no parallel mixers in one layer: {', '.join(beside)}.")
    others = sorted({layer.name for layer in sequence if layer.name != "attn"})
    if len(others) > 1:
        raise UserError(f"flash-linear-attention mixes attention with one other mixer; this has {', '.join(others)}.")
    kinds = {mixer: kind for kind, mixer in RECURRENT.items()}
    if others and others[0] not in kinds:
        raise UserError(f"flash-linear-attention has no model of {others[0]}; it has {', '.join(kinds)}.")
    places = [i for i, layer in enumerate(sequence) if layer.name == "attn"]
    kind = kinds[others[0]] if others else "transformer"
    mixed = {"attn": {"layers": places}} if others and places else {}
    return json.dumps({"model_type": kind, "num_hidden_layers": len(sequence), **mixed})


def _layer_type(layer: Layer) -> str:
    if layer.branches:
        return "hybrid"
    if layer.name == "attn":
        return "sliding_attention" if dict(layer.options).get("window") else "full_attention"
    return LAYER_TYPES.get(layer.name, "linear_attention")


#: flash-linear-attention's `model_type` → the mixer; all others are attention.
RECURRENT = {
    "gla": "gla",
    "linear_attn": "linear",
    "retnet": "retnet",
    "hgrn2": "hgrn2",
    "delta_net": "deltanet",
    "gated_deltanet": "gated-deltanet",
    "kda": "kda",
    "rwkv6": "rwkv6",
    "rwkv7": "rwkv7",
    "mamba": "mamba",
    "mamba2": "mamba2",
    "mamba3": "mamba3",
    "mla": "mla",
    "forgetting_transformer": "fox",
}
#: transformers' `model_type` → the mixer of its recurrent layers; gated DeltaNet by default.
LINEAR = {
    **dict.fromkeys(("bamba", "falcon_h1", "granitemoehybrid", "mamba2", "nemotron_h", "zamba2"), "mamba2"),
    **dict.fromkeys(("falcon_mamba", "jamba", "mamba", "zamba"), "mamba"),
    "kimi_linear": "kda",
    "minimax": "retnet",
}
ATTENTION = {"full_attention", "sliding_attention", "chunked_attention"}
WORDS = ATTENTION | {"indexed_attention", "linear_attention", "mamba", "hybrid"}
EARLIER_WORDS = {"attention": "full_attention", "deepseek_sparse_attention": "indexed_attention"}


def is_config(data: Mapping[str, Any]) -> bool:
    """Whether plain data is a model's configuration, or part of one, and not a spec."""
    return "layers" not in data and ("num_hidden_layers" in data or "layer_types" in data)


def from_config(data: Mapping[str, Any]) -> dict[str, object]:
    """A configuration of Hugging Face or flash-linear-attention as a spec's plain data: its header and its layers."""
    words = data.get("layer_types")
    if words is not None and not (isinstance(words, list | tuple) and words):
        raise UserError("layer_types must be a list of words, one per layer.")
    d, layers = data.get("hidden_size"), data.get("num_hidden_layers", len(words or ()))
    sizes = (layers,) if d is None else (d, layers)
    if not all(isinstance(size, int) and not isinstance(size, bool) and size > 0 for size in sizes):
        raise UserError("hidden_size and num_hidden_layers must be whole numbers above 0.")
    kinds = _kinds(data, layers)
    channel: dict[str, object] = {"mixer": "swiglu"}
    if isinstance(inner := data.get("intermediate_size"), int):
        channel["inner"] = inner
    alone = "mamba" in str(data.get("model_type")) and inner is None
    body = []
    for kind in kinds:
        body.append(_mixer(kind, data, d))
        if not alone:
            body.append(channel)
    header = {"vocab": data.get("vocab_size", 50257), "tie": bool(data.get("tie_word_embeddings", False))}
    return {**({} if d is None else {"d": d}), **header, "layers": body}


def _kinds(data: Mapping[str, Any], layers: int) -> list[str]:
    """For every layer: a word of `layer_types`, or a recurrent mixer."""
    if (words := data.get("layer_types")) is not None:
        words = [EARLIER_WORDS.get(str(word), str(word)) for word in words]
        unknown = sorted(set(words) - WORDS)
        if unknown or len(words) != layers:
            wrong = (
                f"no layer type {', '.join(unknown)}" if unknown else f"{len(words)} layer types for {layers} layers"
            )
            raise UserError(f"{wrong}; known: {', '.join(sorted(WORDS))}.")
        return words
    usual = str(data.get("model_type", ""))
    attn = data.get("attn") or {}
    places = set(attn.get("layers", ())) if isinstance(attn, Mapping) else set()
    if not all(isinstance(place, int) and 0 <= place < layers for place in places):
        raise UserError(f"attn.layers names a layer that is not among the {layers}.")
    return ["full_attention" if i in places or usual not in RECURRENT else usual for i in range(layers)]


def _mixer(kind: str, data: Mapping[str, Any], d: int | None) -> dict[str, object]:
    if kind == "hybrid":
        return {"parallel": [_mixer("full_attention", data, d), {"mixer": "mamba2"}]}
    if kind == "indexed_attention":
        return {"mixer": "sparse-attn"}
    family = str(data.get("model_type", ""))
    if kind == "mamba" and "layer_types" in data:
        return {"mixer": LINEAR.get(family, "mamba2")}
    if kind == "linear_attention":
        mixer, width = LINEAR.get(family, "gated-deltanet"), data.get("linear_key_head_dim")
        sized = mixer == "gated-deltanet" and isinstance(width, int)
        return {"mixer": mixer, **({"head_dim": width} if sized else {})}
    if kind in RECURRENT:
        heads = data.get("num_heads") if kind in ("gla", "linear_attn", "retnet") else None
        width = data.get("head_dim") if kind in ("delta_net", "gated_deltanet", "rwkv6", "rwkv7", "mamba2") else None
        sizes = {"heads": heads, "head_dim": width}
        return {"mixer": RECURRENT[kind], **{key: value for key, value in sizes.items() if isinstance(value, int)}}
    own = data.get("attn") if isinstance(data.get("attn"), Mapping) else {}
    assert isinstance(own, Mapping)
    heads = own.get("num_heads", data.get("num_attention_heads", data.get("num_heads")))
    groups = own.get("num_kv_heads", data.get("num_key_value_heads"))
    window = own.get("window_size", data.get("sliding_window") if kind != "full_attention" else None)
    width, theta = data.get("head_dim"), data.get("rope_theta")
    options = {"mixer": "attn", "heads": heads, "window": window, "theta": theta}
    options["kv_heads"] = groups if groups != heads else None
    options["head_dim"] = width if isinstance(heads, int) and d is not None and width != d // heads else None
    return {key: value for key, value in options.items() if value is not None}
