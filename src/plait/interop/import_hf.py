"""GPT-2, OPT, Llama, Qwen, Mistral, Mamba and plait's own exports from a local Hugging Face folder: config.json and
safetensors become a plait model.

Only safetensors are read, because a pickle may run any code. A config with features that the mapping does not support
(biases in the MLP, long-rope …) is refused, never approximated.
"""

from __future__ import annotations

import os
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from plait.core.errors import UserError, did_you_mean
from plait.core.files import loads, read_object
from plait.data import Tokenizer, load_tokenizer
from plait.data.trained_tokenizers import FILE, open_file
from plait.interop import gpt2_family, llama_family, mamba_family
from plait.interop.hf_config import Config, Family, Weights
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


FAMILIES = {**gpt2_family.FAMILIES, **llama_family.FAMILIES, **mamba_family.FAMILIES}


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
    if not os.path.exists(path):
        hub = "" if folder.exists() else " Names on the hub are not looked up: download the model and give its folder."
        raise UserError(f"{folder} is not a Hugging Face folder: it has no config.json.{hub}")
    return read_object(path, constants=True)


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
