"""Mamba and Mamba-2, read and written: a stack of mixers alone, under RMS norms."""

from __future__ import annotations

import math
from functools import partial

from plait.core.errors import UserError
from plait.interop.hf_config import (
    Config,
    Family,
    Native,
    Weights,
    number,
    output_weights,
    require,
    require_absent,
    tie,
)
from plait.mixers.mamba import Mamba2Options, MambaOptions
from plait.model.architecture import Architecture

#: Epsilon of Mamba-2's inner norm in plait; transformers uses the model's.
INNER_EPS = 1e-5
#: plait's → transformers' names in a mixer; there the short convolution's weight has a middle dimension of 1.
MAMBA = {
    "log_A_EN": "A_log", "D_E": "D", "taps_EW": "conv1d.weight", "taps_bias_E": "conv1d.bias",
    "input_gate.weight": "in_proj.weight", "input_gate.bias": "in_proj.bias", "selection.weight": "x_proj.weight",
    "step_size.weight": "dt_proj.weight", "step_size.bias": "dt_proj.bias", "output.weight": "out_proj.weight",
    "output.bias": "out_proj.bias",
}  # fmt: skip
MAMBA2 = {
    "log_rate_H": "A_log", "skip_H": "D", "step_bias_H": "dt_bias", "taps_CW": "conv1d.weight",
    "taps_bias_C": "conv1d.bias", "input.weight": "in_proj.weight", "norm.weight": "norm.weight",
    "output.weight": "out_proj.weight",
}  # fmt: skip
TAPS = "conv1d.weight"


def mamba_spec(config: Config) -> str:
    d, rank = config["hidden_size"], config.get("time_step_rank", "auto")
    inner = config.get("intermediate_size") or config.get("expand", 2) * d
    options = [
        f"state={config['state_size']}", f"conv={config.get('conv_kernel', 4)}", f"expand={inner / d}",
        f"dt_rank={math.ceil(d / 16) if rank == 'auto' else rank}", f"conv_bias={_flag(config, 'use_conv_bias', True)}",
        f"bias={_flag(config, 'use_bias', False)}",
    ]  # fmt: skip
    return _stack(config, "mamba", options, tied=True)


def mamba2_spec(config: Config) -> str:
    d, eps = config["hidden_size"], config.get("layer_norm_epsilon", 1e-5)
    require(config, "use_bias", False)
    require(config, "use_conv_bias", True)
    expand, heads, width = config.get("expand", 2), config["num_heads"], config.get("head_dim", 64)
    if expand * d != heads * width:
        raise UserError(f"{heads} heads of {width} in the config are not expand × hidden_size = {expand * d}.")
    low, high = map(number, config.get("time_step_limit") or (0.0, math.inf))
    if low > 0 or high != math.inf:
        raise UserError(f"time_step_limit=({low}, {high}) in the config: only unlimited steps can be imported.")
    if eps != INNER_EPS:
        raise UserError(f"layer_norm_epsilon={eps} in the config: mamba2 has {INNER_EPS} inside.")
    options = [
        f"state={config['state_size']}", f"conv={config.get('conv_kernel', 4)}", f"expand={expand}",
        f"head_dim={width}", f"groups={config.get('n_groups', 8)}",
    ]  # fmt: skip
    return _stack(config, "mamba2", options, tied=False)


def _stack(config: Config, mixer: str, options: list[str], *, tied: bool) -> str:
    require(config, "hidden_act", "silu")
    require_absent(config, "quantization_config")
    return (
        f"d={config['hidden_size']} vocab={config['vocab_size']} tie={tie(config, tied)}"
        f" eps={config.get('layer_norm_epsilon', 1e-5)} | ({mixer}[{','.join(options)}])x{config['num_hidden_layers']}"
    )


def _flag(config: Config, key: str, default: bool) -> str:
    return str(bool(config.get(key, default))).lower()


def _ours(names: dict[str, str], config: Config, theirs: Weights) -> Weights:
    ours = {
        "backbone.embedding.tables.0.weight": theirs.pop("embeddings.weight"),
        "backbone.final_norm.weight": theirs.pop("norm_f.weight"),
    }
    for i in range(config["num_hidden_layers"]):
        block, layer = f"backbone.blocks.{i}", f"layers.{i}"
        ours[f"{block}.norm.weight"] = theirs.pop(f"{layer}.norm.weight")
        for name, source in names.items():
            if source.endswith(".bias") and f"{layer}.mixer.{source}" not in theirs:
                continue  # if it is required, loading reports it as missing
            value = theirs.pop(f"{layer}.mixer.{source}")
            ours[f"{block}.mixer.{name}"] = value.squeeze(1) if source == TAPS else value
    return ours


def _only(arch: Architecture, options: type[MambaOptions] | type[Mamba2Options]) -> MambaOptions | Mamba2Options:
    first = arch.layers[0]
    if not isinstance(first, options):
        raise UserError(f"not a stack of {options.name}")
    return first


def _config(arch: Architecture, kind: str, mixer: MambaOptions | Mamba2Options) -> Config:
    header = arch.header
    return {
        "model_type": kind,
        "hidden_size": header.d,
        "vocab_size": header.vocab,
        "num_hidden_layers": len(arch.layers),
        "state_size": mixer.state,
        "conv_kernel": mixer.conv,
        "expand": int(mixer.expand) if mixer.expand == int(mixer.expand) else mixer.expand,
        "layer_norm_epsilon": header.eps,
        "hidden_act": "silu",
        "tie_word_embeddings": header.tie,
    }


def mamba_config(arch: Architecture) -> Config:
    mixer = _only(arch, MambaOptions)
    assert isinstance(mixer, MambaOptions)
    d = arch.header.d
    return {
        **_config(arch, "mamba", mixer),
        "intermediate_size": int(mixer.inner_width(d)),
        "time_step_rank": int(mixer.rank(d)),
        "use_conv_bias": mixer.conv_bias,
        "use_bias": mixer.bias,
    }


def mamba2_config(arch: Architecture) -> Config:
    mixer = _only(arch, Mamba2Options)
    assert isinstance(mixer, Mamba2Options)
    return {
        **_config(arch, "mamba2", mixer),
        "num_heads": int(mixer.heads(arch.header.d)),
        "head_dim": mixer.head_dim,
        "n_groups": mixer.groups,
        "use_conv_bias": True,
        "use_bias": False,
    }


def _theirs(names: dict[str, str], arch: Architecture, ours: Weights) -> Weights:
    theirs = {
        "backbone.embeddings.weight": ours["backbone.embedding.tables.0.weight"],
        "backbone.norm_f.weight": ours["backbone.final_norm.weight"],
        **output_weights(arch, ours),
    }
    for i in range(len(arch.layers)):
        block, layer = f"backbone.blocks.{i}", f"backbone.layers.{i}"
        theirs[f"{layer}.norm.weight"] = ours[f"{block}.norm.weight"]
        for name, source in names.items():
            if f"{block}.mixer.{name}" in ours:
                value = ours[f"{block}.mixer.{name}"]
                theirs[f"{layer}.mixer.{source}"] = value[:, None] if source == TAPS else value
    return theirs


FAMILIES = {
    "mamba": Family(mamba_spec, partial(_ours, MAMBA), "backbone."),
    "mamba2": Family(mamba2_spec, partial(_ours, MAMBA2), "backbone."),
}
NATIVE = {
    "mamba": Native("MambaForCausalLM", mamba_config, partial(_theirs, MAMBA)),
    "mamba2": Native("Mamba2ForCausalLM", mamba2_config, partial(_theirs, MAMBA2)),
}
