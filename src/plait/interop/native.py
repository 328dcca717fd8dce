"""Pure attention models as folders of Hugging Face's own classes, which load without plait.

`LlamaForCausalLM` where a layer is rotary attention and a SwiGLU, `GPT2LMHeadModel` where it is attention and an MLP
under learned positions. Whether a model is one of them is asked of the import: a config is native if reading it back
gives the very architecture. Nothing is approximated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from plait.core.atomic_write import filled_folder
from plait.core.errors import UserError
from plait.data import Tokenizer
from plait.interop.hf import weights_of, write_tokenizer
from plait.interop.import_hf import ACTIVATIONS, Config, Weights, spec_text
from plait.mixers.attn import AttnOptions
from plait.mixers.mlp import MlpOptions, SwigluOptions
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture, architecture
from plait.model.heads import Encoder, LanguageModel
from plait.spec import Header

Channel = MlpOptions | SwigluOptions
#: As `hf.TOLERANCE`, for classes that compute norms and rotary angles in float32 whatever the weights are.
TOLERANCE = 1e-5
LONGEST = 4096  # positions that a LLaMA config states; rotary ones have no end of their own
#: Ours → theirs, where two of them are spelled alike.
THEIR_ACTIVATIONS = {ours: theirs for theirs, ours in reversed(ACTIVATIONS.items())}


@dataclass(frozen=True)
class Native:
    class_name: str
    config: Callable[[Architecture, AttnOptions, Channel], Config]  # of the first attention and channel mixer
    weights: Callable[[Architecture, Weights], Weights]  # theirs from ours


def native_class(arch: Architecture) -> tuple[Native, Config] | None:
    """The class and config that mean exactly this architecture, if there is one."""
    pairs = list(zip(arch.layers[::2], arch.layers[1::2], strict=False))
    if not pairs or len(arch.layers) % 2:
        return None
    attention, channel = pairs[0]
    if not isinstance(attention, AttnOptions) or not isinstance(channel, MlpOptions | SwigluOptions):
        return None
    for native in NATIVE.values():
        with suppress(UserError, KeyError):  # one that the class has no words for
            config = native.config(arch, attention, channel)
            if _explicit(architecture(spec_text(config))) == _explicit(arch):
                return native, config
    return None


def _explicit(arch: Architecture) -> tuple[Header, list[MixerOptions]]:
    """With the numbers that stand for "as the model's" filled in."""
    d = arch.header.d
    layers: list[MixerOptions] = []
    for layer in arch.layers:
        if isinstance(layer, AttnOptions):
            kv_heads, head_dim = layer.kv_heads or layer.heads, layer.head_dim or d // layer.heads
            layers.append(replace(layer, kv_heads=kv_heads, head_dim=head_dim))
        elif isinstance(layer, MlpOptions | SwigluOptions):
            layers.append(replace(layer, inner=int(layer.inner_width(d))))
        else:
            layers.append(layer)
    return arch.header, layers


def export_native(
    model: LanguageModel | Encoder, tokenizer: Tokenizer | None, folder: Path, *, force: bool = False
) -> str:
    """Write the folder; the name of the class that loads it."""
    found = native_class(model.arch)
    if found is None:
        raise UserError(
            f"{model.arch.text} is neither a LLaMA (rotary attention and SwiGLU, RMS norm) nor a GPT-2 (attention and "
            "MLP, learned positions, LayerNorm): export it with --to hf, which loads where plait is installed."
        )
    native, config = found
    end = tokenizer.end if tokenizer is not None else None
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    tokens = {"bos_token_id": None, "eos_token_id": end, "pad_token_id": end}
    whole = {**config, "architectures": [native.class_name], "dtype": dtype, **tokens}
    with filled_folder(folder, force=force) as scratch:
        (scratch / "config.json").write_text(json.dumps(whole, indent=2) + "\n", encoding="utf-8")
        (scratch / "generation_config.json").write_text(json.dumps(tokens) + "\n", encoding="utf-8")
        theirs = {name: value.contiguous() for name, value in native.weights(model.arch, weights_of(model)).items()}
        save_file(theirs, scratch / "model.safetensors", metadata={"format": "pt"})
        if tokenizer is not None:
            write_tokenizer(tokenizer, scratch)
    return native.class_name


def _llama_config(arch: Architecture, attention: AttnOptions, channel: Channel) -> Config:
    header = arch.header
    return {
        "model_type": "llama",
        "hidden_size": header.d,
        "vocab_size": header.vocab,
        "num_hidden_layers": len(arch.layers) // 2,
        "num_attention_heads": attention.heads,
        "num_key_value_heads": attention.kv_heads or attention.heads,
        "head_dim": attention.head_dim or header.d // attention.heads,
        "intermediate_size": int(channel.inner_width(header.d)),
        "rms_norm_eps": header.eps,
        "rope_theta": attention.theta,
        "rope_parameters": {"rope_type": "default", "rope_theta": attention.theta},
        "attention_bias": attention.bias,
        "mlp_bias": False,
        "hidden_act": "silu",
        "tie_word_embeddings": header.tie,
        "max_position_embeddings": LONGEST,
    }


def _llama_weights(arch: Architecture, ours: Weights) -> Weights:
    attention = arch.layers[0]
    assert isinstance(attention, AttnOptions)
    width = attention.head_dim or arch.header.d // attention.heads
    rows = [width * attention.heads] + [width * (attention.kv_heads or attention.heads)] * 2
    theirs = {
        "model.embed_tokens.weight": ours["backbone.embedding.tables.0.weight"],
        "model.norm.weight": ours["backbone.final_norm.weight"],
        **_output(arch, ours),
    }
    for i in range(len(arch.layers) // 2):
        block, mlp, layer = f"backbone.blocks.{2 * i}", f"backbone.blocks.{2 * i + 1}", f"model.layers.{i}"
        theirs[f"{layer}.input_layernorm.weight"] = ours[f"{block}.norm.weight"]
        theirs[f"{layer}.post_attention_layernorm.weight"] = ours[f"{mlp}.norm.weight"]
        for kind in ("weight", "bias") if attention.bias else ("weight",):
            parts = ours[f"{block}.mixer.qkv.{kind}"].split(rows)
            theirs |= {f"{layer}.self_attn.{name}_proj.{kind}": part for name, part in zip("qkv", parts, strict=True)}
            theirs[f"{layer}.self_attn.o_proj.{kind}"] = ours[f"{block}.mixer.output.{kind}"]
        gate, up = ours[f"{mlp}.mixer.gate_up.weight"].chunk(2)
        theirs |= {f"{layer}.mlp.gate_proj.weight": gate, f"{layer}.mlp.up_proj.weight": up}
        theirs[f"{layer}.mlp.down_proj.weight"] = ours[f"{mlp}.mixer.down.weight"]
    return theirs


def _gpt2_config(arch: Architecture, attention: AttnOptions, channel: Channel) -> Config:
    header = arch.header
    return {
        "model_type": "gpt2",
        "n_embd": header.d,
        "vocab_size": header.vocab,
        "n_layer": len(arch.layers) // 2,
        "n_head": attention.heads,
        "n_positions": header.max_len,
        "n_inner": int(channel.inner_width(header.d)),
        "activation_function": THEIR_ACTIVATIONS[channel.act if isinstance(channel, MlpOptions) else ""],
        "layer_norm_epsilon": header.eps,
        "tie_word_embeddings": header.tie,
        "attn_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "resid_pdrop": 0.0,
    }


def _gpt2_weights(arch: Architecture, ours: Weights) -> Weights:
    theirs = {
        "transformer.wte.weight": ours["backbone.embedding.tables.0.weight"],
        "transformer.wpe.weight": ours["backbone.position.weight"],
        **_output(arch, ours),
    }
    pairs = {"transformer.ln_f": "backbone.final_norm"}
    transposed = set()
    for i in range(len(arch.layers) // 2):
        block, mlp, layer = f"backbone.blocks.{2 * i}", f"backbone.blocks.{2 * i + 1}", f"transformer.h.{i}"
        linear = {
            f"{layer}.attn.c_attn": f"{block}.mixer.qkv",
            f"{layer}.attn.c_proj": f"{block}.mixer.output",
            f"{layer}.mlp.c_fc": f"{mlp}.mixer.up",
            f"{layer}.mlp.c_proj": f"{mlp}.mixer.down",
        }
        transposed |= set(linear)
        pairs |= {f"{layer}.ln_1": f"{block}.norm", f"{layer}.ln_2": f"{mlp}.norm", **linear}
    for name, source in pairs.items():
        weight = ours[f"{source}.weight"]
        theirs |= {
            f"{name}.weight": weight.T if name in transposed else weight,  # GPT-2 stores its linear maps transposed
            f"{name}.bias": ours[f"{source}.bias"],
        }
    return theirs


def _output(arch: Architecture, ours: Mapping[str, Tensor]) -> Weights:
    return {} if arch.header.tie else {"lm_head.weight": ours["output.weight"]}


NATIVE = {
    "llama": Native("LlamaForCausalLM", _llama_config, _llama_weights),
    "gpt2": Native("GPT2LMHeadModel", _gpt2_config, _gpt2_weights),
}
