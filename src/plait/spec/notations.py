"""Layers in other people's notations: Megatron's pattern, Hugging Face's layer types, flash-linear-attention's layers.

    megatron       one symbol per mixer: `--hybrid-layer-pattern M-M*-` (read back by `megatron:M-M*-`)
    layer_types    one word per layer, a sequence mixer with what follows it: full_attention, sliding_attention, …
    fla            which layers of a model of one recurrent mixer are softmax attention: {"attn": {"layers": [3, 7]}}

A notation says which mixer stands where, not its sizes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plait.core.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from plait.spec.nodes import Layer

NOTATIONS = ("megatron", "layer_types", "fla")
MEGATRON = {
    "mamba2": "M",
    "gated-deltanet": "G",
    "attn": "*",
    "mla": "+",
    "mlp": "-",
    "swiglu": "-",
    "moe": "E",
}
CHANNEL = ("mlp", "swiglu", "moe", "identity")
#: Hugging Face's words for what transformers has layers of.
LAYER_TYPES = {"mamba": "mamba", "mamba2": "mamba", "mla": "full_attention", "fox": "full_attention"}


def written(layers: Sequence[Layer], notation: str) -> str:
    """The layers in a notation; a `UserError` where it has no sign for one of them."""
    if notation not in NOTATIONS:
        near = did_you_mean(notation, NOTATIONS)
        raise UserError(f"unknown notation '{notation}'.{near} Known: {', '.join(NOTATIONS)}.")
    if notation == "megatron":
        missing = sorted({layer.name for layer in layers} - set(MEGATRON))
        if missing:
            raise UserError(f"Megatron has no symbol for {', '.join(missing)}; it has {' '.join(MEGATRON)}.")
        return "".join(MEGATRON[layer.name] for layer in layers)
    sequence = [layer for layer in layers if layer.name not in CHANNEL]
    if notation == "layer_types":
        return json.dumps([_layer_type(layer) for layer in sequence])
    others = sorted({layer.name for layer in sequence if layer.name != "attn"})
    if len(others) > 1:
        raise UserError(f"flash-linear-attention mixes attention with one other mixer; this has {', '.join(others)}.")
    places = [i for i, layer in enumerate(sequence) if layer.name == "attn"]
    return json.dumps({"mixer": others[0] if others else "attn", "attn": {"layers": places}})


def _layer_type(layer: Layer) -> str:
    if layer.branches:
        return "hybrid"
    if layer.name == "attn":
        return "sliding_attention" if dict(layer.options).get("window") else "full_attention"
    return LAYER_TYPES.get(layer.name, "linear_attention")
