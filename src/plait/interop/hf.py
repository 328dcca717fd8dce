"""Our tokenizers as a tokenizer.json of Hugging Face's library that gives the same ids.

bytes   BPE without merges on the library's alphabet of printable stand-ins for bytes
chars   one word per character; the unknown character is U+FFFD, as in decoding
words   line ends become <eos>, then split at whitespace (Python's definition, which is wider than Unicode's)
ids     numbers are words; leading zeros are dropped
bpe     is such a file already; post-processors that add tokens around a text are removed, since models never saw them

Also the folder that `AutoModelForCausalLM.from_pretrained` loads, if plait is installed or the folder's code trusted:

config.json              model_type "plait" and the architecture's text
generation_config.json   the end-of-text token
model.safetensors        the weights under plait's names; shared ones once
tokenizer.json           for `AutoTokenizer`, with tokenizer_config.json
modeling_plait.py        the model's code, for programs without plait (trust_remote_code=True)
my_mixer.py              the user's own mixers, as they were in training; run only with trust_remote_code=True
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from plait.core.errors import UserError
from plait.core.files import filled_folder
from plait.data import Tokenizer
from plait.data.tokenizers import END, SPECIAL, UNKNOWN, UNKNOWN_CHARACTER, Bytes, Characters, Ids, Words
from plait.data.trained_tokenizers import CONFIG, FILE, HuggingFace, library
from plait.model.language_model import Encoder, LanguageModel
from plait.spec import Header


def write_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json and its config for `AutoTokenizer`, in addition to plait's own file."""
    tokenizer.save(folder)
    if not isinstance(tokenizer, HuggingFace):
        make = _FORMS.get(type(tokenizer))
        if make is None:
            raise UserError(
                f"tokenizers of type {type(tokenizer).__name__} cannot be expressed in Hugging Face's library."
            )
        make(tokenizer).save(str(folder / FILE))
    _without_post_processor(folder / FILE)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "padding_side": "left",
    }
    if isinstance(tokenizer, HuggingFace) and tokenizer.end is not None:
        # Only here, since special tokens are also matched inside words, unlike in our word vocabularies.
        config["eos_token"] = config["pad_token"] = tokenizer.decode([tokenizer.end])
    (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def _without_post_processor(path: Path) -> None:
    content = json.loads(path.read_text(encoding="utf-8"))
    content["post_processor"] = None
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def _bytes(tokenizer: Bytes) -> Any:
    hf = library()
    theirs = hf.Tokenizer(hf.models.BPE(vocab={sign: byte for byte, sign in enumerate(_byte_signs())}, merges=[]))
    theirs.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.decoder = hf.decoders.ByteLevel()
    return theirs


def _byte_signs() -> list[str]:
    """The library's printable character for each byte: itself where it prints, else the next one from U+0100 on."""
    prints = {*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)}
    spare = iter(range(256, 512))
    return [chr(byte if byte in prints else next(spare)) for byte in range(256)]


def _characters(tokenizer: Characters) -> Any:
    hf = library()
    if any(0xD800 <= ord(character) < 0xE000 for character in tokenizer.alphabet):
        raise UserError(
            "the alphabet contains bytes that are not UTF-8, which Hugging Face's tokenizers cannot express."
        )
    vocabulary = {character: number for number, character in enumerate(tokenizer.alphabet)}
    unknown = UNKNOWN if UNKNOWN_CHARACTER in vocabulary else UNKNOWN_CHARACTER
    if tokenizer.unknown:
        vocabulary[unknown] = len(vocabulary)
    # If the unknown token is not in the vocabulary, unknown characters are an error, as in plait.
    theirs = hf.Tokenizer(hf.models.WordLevel(vocabulary, unk_token=unknown))
    theirs.pre_tokenizer = hf.pre_tokenizers.Split(hf.Regex(r"[\s\S]"), "isolated")
    theirs.decoder = hf.decoders.Sequence([hf.decoders.Replace(unknown, UNKNOWN_CHARACTER), hf.decoders.Fuse()])
    return theirs


def _words(tokenizer: Words) -> Any:
    hf = library()
    words = [*SPECIAL, *tokenizer.content()["words"]]
    theirs = hf.Tokenizer(hf.models.WordLevel({word: number for number, word in enumerate(words)}, unk_token=UNKNOWN))
    theirs.normalizer = hf.normalizers.Replace("\n", f" {END} ")
    theirs.pre_tokenizer = hf.pre_tokenizers.Split(hf.Regex(_whitespace()), "removed")
    line_ends = hf.decoders.Replace(hf.Regex(f" ?{END} ?"), "\n")
    theirs.decoder = hf.decoders.Sequence([*_spaced(hf), line_ends])
    return theirs


def _ids(tokenizer: Ids) -> Any:
    hf = library()
    numbers = {str(number): number for number in range(tokenizer.vocab)}
    theirs = hf.Tokenizer(hf.models.WordLevel(numbers, unk_token=UNKNOWN))  # not in the vocabulary, so an error
    theirs.normalizer = hf.normalizers.Replace(hf.Regex(r"(?<!\S)0+(?=[0-9])"), "")
    theirs.pre_tokenizer = hf.pre_tokenizers.Split(hf.Regex(_whitespace()), "removed")
    theirs.decoder = hf.decoders.Sequence(_spaced(hf))
    return theirs


def _whitespace() -> str:
    """The whitespace of `str.split`, as a regular expression of the library."""
    return "[{}]+".format("".join(f"\\x{{{code:x}}}" for code in range(0x3001) if chr(code).isspace()))


def _spaced(hf: Any) -> list[Any]:
    """A decoder that joins words by spaces: the word-piece decoder, with a prefix that no word has."""
    return [hf.decoders.WordPiece(prefix="\0", cleanup=False), hf.decoders.Fuse()]


_FORMS: dict[type, Callable[[Any], Any]] = {Bytes: _bytes, Characters: _characters, Words: _words, Ids: _ids}


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
    from plait.interop.modeling_file import NAME, modeling_file

    if model.arch.header.kind not in CLASSES:
        raise UserError(
            f"a model of kind={model.arch.header.kind} cannot be exported to Hugging Face; lm and encoder can."
        )
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
        (scratch / NAME).write_text(modeling_file(model), encoding="utf-8")
        if tokenizer is not None:
            write_tokenizer(tokenizer, scratch)


def weights_of(model: torch.nn.Module) -> dict[str, Tensor]:
    """Parameters and stored buffers by name, each once."""
    named: dict[str, Tensor] = dict(model.named_parameters())
    named |= {name: value for name, value in model.state_dict().items() if name in dict(model.named_buffers())}
    return {name: value.detach().cpu().contiguous() for name, value in named.items()}


@dataclass(frozen=True)
class Check:
    """The result of loading the folder with the Auto classes, as a user would."""

    logits_gap: float  # the largest difference in float64, over the standard deviation of the logits
    text_tokens_compared: int  # ids of a sample text from both tokenizers, all equal; 0 without a tokenizer


def check_hf(
    model: LanguageModel | Encoder, tokenizer: Tokenizer | None, folder: Path, *, tolerance: float = TOLERANCE
) -> Check:
    """Load the folder with the Auto classes and compare; a difference is an error."""
    _require_transformers()
    import transformers

    import plait.interop.hf_model  # noqa: F401 (registers the classes)

    auto: Any = getattr(transformers, CLASSES[model.arch.header.kind][0])
    gap = logits_gap(model, auto.from_pretrained(folder))
    if not gap <= tolerance:
        raise UserError(
            f"{folder} was written, but its model gives different logits (in float64 the largest difference is "
            f"{gap:.3g} of their standard deviation)."
        )
    compared = 0
    if tokenizer is not None:
        sample = tokenizer.decode(list(range(min(tokenizer.vocab, 300))))
        theirs = transformers.AutoTokenizer.from_pretrained(folder)(sample)["input_ids"]
        ours = tokenizer.encode(sample).tolist()
        if theirs != ours:
            raise UserError(f"{folder} was written, but its tokenizer gives different ids.")
        compared = len(ours)
    return Check(gap, compared)


def logits_gap(model: LanguageModel | Encoder, other: Any) -> float:
    """The largest difference in float64, over the standard deviation of the model's own."""
    expected_BTV = _logits(copy.deepcopy(model), model.arch.header)
    gap_BTV = _logits(other, model.arch.header) - expected_BTV
    return float(gap_BTV.abs().max() / expected_BTV.std().clamp(min=torch.finfo(torch.float64).tiny))


@torch.no_grad()
def _logits(model: Any, header: Header) -> Tensor:
    """The logits of one fixed batch in float64, so that two implementations of the same model agree to rounding."""
    length = min(64, header.max_len) if header.pos == "learned" else 64
    tokens_BT = torch.randint(header.vocab, (2, length), generator=torch.Generator().manual_seed(0))
    output = model.cpu().double().eval()(tokens_BT)
    logits_BTV: Tensor = output if isinstance(output, Tensor) else output.logits
    return logits_BTV


def _require_transformers() -> None:
    if find_spec("transformers") is None:
        raise UserError("this needs the `transformers` package: pip install 'plait[hf]'.")
