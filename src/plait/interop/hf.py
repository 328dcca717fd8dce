"""A folder that `AutoModelForCausalLM.from_pretrained` loads wherever plait is installed.

config.json              model_type "plait" and the architecture's text
generation_config.json   the end-of-text token
model.safetensors        the weights under our names; a shared one once
tokenizer.json           for `AutoTokenizer`; tokenizer_config.json beside it
modeling_plait.py        imports plait's classes, for programs that have not imported plait (trust_remote_code=True)
my_mixer.py              the user's own mixers, as they were in training; run under trust_remote_code=True alone
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from plait.core.errors import UserError
from plait.data import Tokenizer
from plait.interop.hf_tokenizer import write_tokenizer
from plait.interop.target import filled_folder
from plait.model.heads import Encoder, LanguageModel
from plait.spec import Header

#: The module that Hugging Face's loader runs for a model type it does not know: plait does the rest.
REMOTE = '''"""Loads plait's model classes; needs `pip install plait`."""

from plait.interop.hf_model import PlaitConfig, PlaitForCausalLM, PlaitForMaskedLM

__all__ = ["PlaitConfig", "PlaitForCausalLM", "PlaitForMaskedLM"]
'''
CLASSES = {"lm": ("AutoModelForCausalLM", "PlaitForCausalLM"), "encoder": ("AutoModelForMaskedLM", "PlaitForMaskedLM")}

#: The largest difference in logits that a reloaded model may show, both computed in float64, over the standard
#: deviation of the logits. Rounding alone is below 1e-12; a weight changed by a millionth of itself can be above.
TOLERANCE = 1e-8


def export_hf(
    model: LanguageModel | Encoder, tokenizer: Tokenizer | None, folder: Path, *, force: bool = False
) -> None:
    _require_transformers()
    from transformers import GenerationConfig

    from plait.interop.hf_model import PlaitConfig, write_mixers

    if model.arch.header.kind not in CLASSES:
        raise UserError(f"a model of kind={model.arch.header.kind} has no place in a Hugging Face folder.")
    if tokenizer is not None and tokenizer.vocab > model.arch.header.vocab:
        raise UserError(f"the tokenizer has {tokenizer.vocab} ids, the model only {model.arch.header.vocab}.")
    auto, name = CLASSES[model.arch.header.kind]
    end = tokenizer.end if tokenizer is not None else None
    dtype = str(next(model.parameters()).dtype).removeprefix("torch.")
    config = PlaitConfig.of(
        model.arch,
        architectures=[name],
        dtype=dtype,
        auto_map={"AutoConfig": "modeling_plait.PlaitConfig", auto: f"modeling_plait.{name}"},
        bos_token_id=None,
        eos_token_id=end,
        pad_token_id=end,
    )
    with filled_folder(folder, force=force) as scratch:
        config.save_pretrained(scratch)
        if model.arch.header.kind == "lm":
            GenerationConfig(eos_token_id=end, pad_token_id=end).save_pretrained(scratch)
        write_mixers(model.arch, scratch)
        save_file(weights_of(model), scratch / "model.safetensors", metadata={"format": "pt"})
        (scratch / "modeling_plait.py").write_text(REMOTE, encoding="utf-8")
        if tokenizer is not None:
            write_tokenizer(tokenizer, scratch)


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and stored buffers by name, each once."""
    named: dict[str, Tensor] = dict(model.named_parameters())
    named |= {name: value for name, value in model.state_dict().items() if name in dict(model.named_buffers())}
    return {name: value.detach().cpu().contiguous() for name, value in named.items()}


@dataclass(frozen=True)
class Check:
    """A written folder, read again as a user would."""

    logits_gap: float  # the largest difference in float64, over the standard deviation of the logits
    text_tokens_compared: int  # ids of a sample text from both tokenizers, all equal; 0 without a tokenizer


def check_hf(model: LanguageModel | Encoder, tokenizer: Tokenizer | None, folder: Path) -> Check:
    """Load the folder with the Auto classes and compare; a difference is an error."""
    _require_transformers()
    import transformers

    import plait.interop.hf_model  # noqa: F401 (registers the classes)

    auto: Any = getattr(transformers, CLASSES[model.arch.header.kind][0])
    expected_BTV = _logits(copy.deepcopy(model), model.arch.header)
    gap_BTV = _logits(auto.from_pretrained(folder), model.arch.header) - expected_BTV
    gap = (gap_BTV.abs().max() / expected_BTV.std().clamp(min=torch.finfo(torch.float64).tiny)).item()
    if not gap <= TOLERANCE:
        raise UserError(
            f"{folder} was written, but its model gives other logits (in float64 the largest difference is {gap:.3g} "
            "of their standard deviation)."
        )
    compared = 0
    if tokenizer is not None:
        sample = tokenizer.decode(list(range(min(tokenizer.vocab, 300))))
        theirs = transformers.AutoTokenizer.from_pretrained(folder)(sample)["input_ids"]
        ours = tokenizer.encode(sample).tolist()
        if theirs != ours:
            raise UserError(f"{folder} was written, but its tokenizer gives other ids than ours.")
        compared = len(ours)
    return Check(gap, compared)


@torch.no_grad()
def _logits(model: Any, header: Header) -> Tensor:
    """Of one fixed batch, in float64: two ways to compute the same then agree to its rounding, whatever their size."""
    length = min(64, header.max_len) if header.pos == "learned" else 64
    tokens_BT = torch.randint(header.vocab, (2, length), generator=torch.Generator().manual_seed(0))
    found = model.cpu().double().eval()(tokens_BT)
    logits_BTV: Tensor = found if isinstance(found, Tensor) else found.logits
    return logits_BTV


def _require_transformers() -> None:
    if find_spec("transformers") is None:
        raise UserError("this needs the `transformers` package: pip install 'plait[hf]'.")
