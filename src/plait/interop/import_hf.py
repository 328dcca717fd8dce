"""GPT-2, OPT, Llama, Qwen, Mistral, Mamba and plait's own exports from a local Hugging Face folder: config.json and
safetensors become a plait model.

Only safetensors are read, because a pickle may run any code. A config with features that the mapping does not support
(biases in the MLP, long-rope …) is refused, never approximated.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from plait.core.errors import UserError, did_you_mean
from plait.core.files import loads
from plait.data import Tokenizer, load_tokenizer
from plait.data.trained_tokenizers import FILE, open_file
from plait.interop import llama_family, mamba_family
from plait.interop.hf_config import Config, Family, Weights, activation, require, tie
from plait.model import build
from plait.model.language_model import LanguageModel, fill

OWN = "plait"  # the model_type of plait's own exports


def import_hf(folder: Path) -> tuple[LanguageModel, Tokenizer | None]:
    """The model, and the tokenizer if the folder has a tokenizer.json."""
    config = read_config(folder)
    own = config.get("model_type") == OWN
    model = build(_own_spec(config) if own else spec_text(config))
    if not isinstance(model, LanguageModel):
        raise UserError(f"{folder} holds a model of kind={model.arch.header.kind}; language models can be imported.")
    if own:
        fill(model, _read_weights(folder), str(folder))
        return model.eval(), load_tokenizer(folder) if (folder / FILE).is_file() else None
    copy_weights(model, config, _read_weights(folder))
    return model.eval(), open_file(folder) if (folder / FILE).is_file() else None


def _own_spec(config: Config) -> str:
    """The spec of a folder written by `plait export --to hf`; its mixer files are not run."""
    if not isinstance(config.get("spec"), str):
        raise UserError("the config has no 'spec' (the architecture's text).")
    return str(config["spec"])


def spec_text(config: Config) -> str:
    """The architecture that a config.json describes, as a spec."""
    try:
        return _family(config).spec(config)
    except KeyError as missing:
        raise UserError(f"the config lacks {missing}.") from None


def trained_length(config: Config) -> int:
    """The longest sequence that the model was trained for."""
    return int(config.get("n_positions") or config.get("max_position_embeddings") or 1024)


@torch.no_grad()
def copy_weights(model: LanguageModel, config: Config, theirs: Weights) -> None:
    """Load every tensor into the plait model; one that is missing, unused or of another shape is an error."""
    family = _family(config)
    left = {name.removeprefix(family.prefix): value for name, value in theirs.items()}
    left = {name: value for name, value in left.items() if not name.endswith(family.ignored)}
    try:
        ours = family.weights(config, left)
    except KeyError as missing:
        raise UserError(f"the folder's weights lack {missing}.") from None
    if model.arch.header.tie:
        left.pop("lm_head.weight", None)  # some files contain the shared table twice
        ours["output.weight"] = ours["backbone.embedding.tables.0.weight"]
    else:
        if "lm_head.weight" not in left:
            raise UserError("the folder's weights lack 'lm_head.weight', and its config does not tie it.")
        ours["output.weight"] = left.pop("lm_head.weight")
    if left:
        raise UserError(f"the folder has weights that its config does not explain: {', '.join(sorted(left)[:3])}.")
    try:
        model.load_state_dict(ours)
    except RuntimeError as wrong:
        raise UserError(f"the folder's weights do not match its config: {wrong}") from None


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


def _gpt2_weights(config: Config, theirs: Weights) -> Weights:
    ours = {
        "backbone.embedding.tables.0.weight": theirs.pop("wte.weight"),
        "backbone.position.weight": theirs.pop("wpe.weight"),
    }
    pairs = [("backbone.final_norm", "ln_f")]
    for i in range(config["n_layer"]):
        attention, mlp, layer = f"backbone.blocks.{2 * i}", f"backbone.blocks.{2 * i + 1}", f"h.{i}"
        pairs += [(f"{attention}.norm", f"{layer}.ln_1"), (f"{mlp}.norm", f"{layer}.ln_2")]
        for name, source in (
            (f"{attention}.mixer.qkv", f"{layer}.attn.c_attn"),
            (f"{attention}.mixer.output", f"{layer}.attn.c_proj"),
            (f"{mlp}.mixer.up", f"{layer}.mlp.c_fc"),
            (f"{mlp}.mixer.down", f"{layer}.mlp.c_proj"),
        ):
            theirs[f"{source}.weight"] = theirs[f"{source}.weight"].T  # GPT-2 stores its linear maps transposed
            pairs.append((name, source))
    for name, source in pairs:
        ours |= {f"{name}.{part}": theirs.pop(f"{source}.{part}") for part in ("weight", "bias")}
    return ours


#: First row of OPT's table of learned positions; the rows before it were meant for padding.
OPT_OFFSET = 2


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
    "gpt2": Family(_gpt2_spec, _gpt2_weights, "transformer.", (".attn.bias", ".attn.masked_bias")),
    "opt": Family(_opt_spec, _opt_weights, "model."),
    **llama_family.FAMILIES,
    **mamba_family.FAMILIES,
}


def _family(config: Config) -> Family:
    name = str(config.get("model_type"))
    if name not in FAMILIES:
        raise UserError(
            f"the config's model_type is '{name}'.{did_you_mean(name, FAMILIES)} "
            f"These can be imported: {', '.join(FAMILIES)}, {OWN}."
        )
    return FAMILIES[name]


def read_config(folder: Path) -> Config:
    """config.json of a Hugging Face folder."""
    path = folder / "config.json"
    try:
        config = loads(path.read_text(encoding="utf-8"), constants=True)
    except (FileNotFoundError, NotADirectoryError):
        hub = " Names on the hub are not looked up: download the model first and give its folder."
        raise UserError(
            f"{folder} is not a Hugging Face folder: it has no config.json.{hub if not folder.exists() else ''}"
        ) from None
    except (OSError, ValueError) as wrong:
        raise UserError(f"{path} cannot be read: {wrong}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} is damaged: it should hold one JSON object.")
    return config


def _read_weights(folder: Path) -> Weights:
    """All tensors of a folder's safetensors files, in float32."""
    files = sorted(folder.glob("*.safetensors"))
    index = folder / "model.safetensors.index.json"
    try:
        if index.is_file():
            files = [
                folder / name for name in sorted(set(loads(index.read_text(), constants=True)["weight_map"].values()))
            ]
        if not files:
            pickled = [path.name for path in (*folder.glob("*.bin"), *folder.glob("*.pt"))]
            why = f"; {pickled[0]} is a pickle, which can run arbitrary code: convert it first" if pickled else ""
            raise UserError(f"{folder} has no safetensors file{why}.")
        return {name: value.float() for file in files for name, value in load_file(file).items()}
    except (OSError, SafetensorError, ValueError, KeyError, AttributeError, TypeError, RuntimeError) as wrong:
        if isinstance(wrong, UserError):
            raise
        raise UserError(f"the weights of {folder} cannot be read: {wrong}") from wrong
