"""Models as folders of Hugging Face's own classes, which load without plait.

`LlamaForCausalLM` where a layer is rotary attention and a SwiGLU (`MistralForCausalLM` with windows,
`Qwen2ForCausalLM` with biases on queries, keys and values, `Qwen3ForCausalLM` with a norm on queries and keys),
`GPT2LMHeadModel` where it is attention and an MLP under learned positions, `MambaForCausalLM` and `Mamba2ForCausalLM`
for stacks of those. A model is native if importing its config gives back exactly the same
architecture. Nothing is approximated.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from safetensors.torch import save_file

from plait.core.errors import UserError
from plait.core.files import filled_folder
from plait.data import Tokenizer
from plait.interop import gpt2_family, llama_family, mamba_family
from plait.interop.hf import weights_of, write_tokenizer
from plait.interop.hf_config import Config, Native
from plait.interop.import_hf import spec_text
from plait.mixers.attn import AttnOptions
from plait.mixers.mamba import MambaOptions
from plait.mixers.mlp import MlpOptions, SwigluOptions
from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture, architecture
from plait.model.language_model import Encoder, LanguageModel
from plait.spec import Header

#: As `hf.TOLERANCE`, for classes that compute norms and rotary angles in float32 whatever the weights are.
TOLERANCE = 1e-5


def native_class(arch: Architecture) -> tuple[Native, Config] | None:
    """The Hugging Face class and config that compute exactly this architecture, if any."""
    for native in NATIVE.values():
        with suppress(UserError, KeyError):  # the class cannot express it
            config = native.config(arch)
            if _explicit(architecture(spec_text(config))) == _explicit(arch):
                return native, config
    return None


def _explicit(arch: Architecture) -> tuple[Header, list[MixerOptions]]:
    """Header and layers, with options that default to a value of the model filled in."""
    d = arch.header.d
    layers: list[MixerOptions] = []
    for layer in arch.layers:
        if isinstance(layer, AttnOptions):
            kv_heads, head_dim = layer.kv_heads or layer.heads, layer.head_dim or d // layer.heads
            layers.append(replace(layer, kv_heads=kv_heads, head_dim=head_dim))
        elif isinstance(layer, MlpOptions | SwigluOptions):
            layers.append(replace(layer, inner=int(layer.inner_width(d))))
        elif isinstance(layer, MambaOptions):
            layers.append(replace(layer, dt_rank=int(layer.rank(d))))
        else:
            layers.append(layer)
    return arch.header, layers


def export_native(
    model: LanguageModel | Encoder, tokenizer: Tokenizer | None, folder: Path, *, force: bool = False
) -> str:
    """Write the folder; returns the name of the class that loads it."""
    class_and_config = native_class(model.arch)
    if class_and_config is None:
        raise UserError(
            f"{model.arch.text} is neither a Llama, Mistral or Qwen (rotary attention and SwiGLU, RMS norm), nor a "
            "GPT-2 (attention and MLP, learned positions, LayerNorm), nor a Mamba: export it with --to hf, which "
            "includes its code."
        )
    native, config = class_and_config
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


NATIVE = {**llama_family.NATIVE, **gpt2_family.NATIVE, **mamba_family.NATIVE}
