"""GPT-2, read and written, and OPT, read: attention and an MLP under learned positions and LayerNorm, with biases."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from plait.core.errors import UserError
from plait.interop.hf_config import (
    ACTIVATIONS,
    Config,
    Family,
    Native,
    Weights,
    activation,
    output_weights,
    require,
    tie,
)
from plait.mixers.attn import AttnOptions
from plait.mixers.mlp import MlpOptions
from plait.model.architecture import Architecture

#: plait's → transformers' activations; several of theirs may map to one of plait's.
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}
#: First row of OPT's table of learned positions; the rows before it were meant for padding.
OPT_OFFSET = 2


def _gpt2_spec(config: Config) -> str:
    require(config, "scale_attn_weights", True)
    require(config, "scale_attn_by_inverse_layer_idx", False)
    require(config, "add_cross_attention", False)
    d, act = config["n_embd"], activation(config, "activation_function", "gelu_new")
    return (
        f"d={d} vocab={config['vocab_size']} pos=learned max_len={config['n_positions']} tie={tie(config, True)}"
        f" norm=layer eps={config.get('layer_norm_epsilon', 1e-5)} | (attn[heads={config['n_head']},pos=none,bias]"
        f" mlp[inner={config.get('n_inner') or 4 * d},act={act}])x{config['n_layer']}"
    )


def _gpt2_config(arch: Architecture) -> Config:
    header, attention, channel = arch.header, arch.layers[0], arch.layers[-1]
    if not isinstance(attention, AttnOptions) or not isinstance(channel, MlpOptions):
        raise UserError("not alternating attention and MLP")
    return {
        "model_type": "gpt2",
        "n_embd": header.d,
        "vocab_size": header.vocab,
        "n_layer": len(arch.layers) // 2,
        "n_head": attention.heads,
        "n_positions": header.max_len,
        "n_inner": int(channel.inner_width(header.d)),
        "activation_function": THEIR_ACTIVATIONS[channel.act],
        "layer_norm_epsilon": header.eps,
        "tie_word_embeddings": header.tie,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }


_GPT2_TABLES = {"backbone.embedding.tables.0.weight": "wte.weight", "backbone.position.weight": "wpe.weight"}


def _gpt2_maps(layers: int) -> Iterator[tuple[str, str, bool]]:
    """Our and their name of every norm and linear map, and whether GPT-2 stores the weight transposed."""
    yield "backbone.final_norm", "ln_f", False
    for i in range(layers):
        attention, mlp, layer = f"backbone.blocks.{2 * i}", f"backbone.blocks.{2 * i + 1}", f"h.{i}"
        yield f"{attention}.norm", f"{layer}.ln_1", False
        yield f"{mlp}.norm", f"{layer}.ln_2", False
        yield f"{attention}.mixer.qkv", f"{layer}.attn.c_attn", True
        yield f"{attention}.mixer.output", f"{layer}.attn.c_proj", True
        yield f"{mlp}.mixer.up", f"{layer}.mlp.c_fc", True
        yield f"{mlp}.mixer.down", f"{layer}.mlp.c_proj", True


def _gpt2_ours(config: Config, theirs: Weights) -> Weights:
    ours = {name: theirs.pop(source) for name, source in _GPT2_TABLES.items()}
    for name, source, transposed in _gpt2_maps(config["n_layer"]):
        weight = theirs.pop(f"{source}.weight")
        ours |= {f"{name}.weight": weight.T if transposed else weight, f"{name}.bias": theirs.pop(f"{source}.bias")}
    return ours


def _gpt2_theirs(arch: Architecture, ours: Weights) -> Weights:
    theirs = {source: ours[name] for name, source in _GPT2_TABLES.items()}
    for name, source, transposed in _gpt2_maps(len(arch.layers) // 2):
        weight = ours[f"{name}.weight"]
        theirs |= {f"{source}.weight": weight.T if transposed else weight, f"{source}.bias": ours[f"{name}.bias"]}
    return {**{f"transformer.{name}": value for name, value in theirs.items()}, **output_weights(arch, ours)}


def _opt_spec(config: Config) -> str:
    d, act = config["hidden_size"], activation(config, "activation_function", "relu")
    require(config, "do_layer_norm_before", True)
    require(config, "_remove_final_layer_norm", False)
    require(config, "layer_norm_elementwise_affine", True)
    require(config, "enable_bias", True)
    if (config.get("word_embed_proj_dim") or d) != d:
        raise UserError(
            f"word_embed_proj_dim={config['word_embed_proj_dim']} in the config: only hidden_size={d} can be imported."
        )
    return (
        f"d={d} vocab={config['vocab_size']} pos=learned max_len={config['max_position_embeddings']}"
        f" tie={tie(config, True)} norm=layer eps=1e-5 | (attn[heads={config['num_attention_heads']},pos=none,bias]"
        f" mlp[inner={config['ffn_dim']},act={act}])x{config['num_hidden_layers']}"
    )


def _opt_weights(config: Config, theirs: Weights) -> Weights:
    ours = {
        "backbone.embedding.tables.0.weight": theirs.pop("decoder.embed_tokens.weight"),
        "backbone.position.weight": theirs.pop("decoder.embed_positions.weight")[OPT_OFFSET:],
    }
    pairs = [("backbone.final_norm", "decoder.final_layer_norm")]
    for i in range(config["num_hidden_layers"]):
        attention, mlp, layer = f"backbone.blocks.{2 * i}", f"backbone.blocks.{2 * i + 1}", f"decoder.layers.{i}"
        for kind in ("weight", "bias"):
            parts = [theirs.pop(f"{layer}.self_attn.{name}_proj.{kind}") for name in ("q", "k", "v")]
            ours[f"{attention}.mixer.qkv.{kind}"] = torch.cat(parts)
        pairs += [
            (f"{attention}.norm", f"{layer}.self_attn_layer_norm"),
            (f"{attention}.mixer.output", f"{layer}.self_attn.out_proj"),
            (f"{mlp}.norm", f"{layer}.final_layer_norm"),
            (f"{mlp}.mixer.up", f"{layer}.fc1"),
            (f"{mlp}.mixer.down", f"{layer}.fc2"),
        ]
    for name, source in pairs:
        ours |= {f"{name}.{part}": theirs.pop(f"{source}.{part}") for part in ("weight", "bias")}
    return ours


FAMILIES = {
    "gpt2": Family(_gpt2_spec, _gpt2_ours, "transformer.", (".attn.bias", ".attn.masked_bias")),
    "opt": Family(_opt_spec, _opt_weights, "model."),
}
NATIVE = {"gpt2": Native("GPT2LMHeadModel", _gpt2_config, _gpt2_theirs)}
