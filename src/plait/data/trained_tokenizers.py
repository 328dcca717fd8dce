"""Tokenizers of Hugging Face's `tokenizers` library, read from any tokenizer.json.

Byte-level byte-pair encoding (Sennrich et al. 2016; on bytes as in GPT-2), learned with Hugging Face's library.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import numpy as np

from plait.core.errors import UserError
from plait.core.files import read_json
from plait.data.tokenizers import Tokenizer, utf8

if TYPE_CHECKING:
    import tokenizers


FILE = "tokenizer.json"
CONFIG = "tokenizer_config.json"  # where `transformers` reads the names of the special tokens

#: Names of the end-of-text token in well-known tokenizers, used if the config next to the file states none.
ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "[SEP]")


@final
class HuggingFace(Tokenizer):
    def __init__(self, inner: tokenizers.Tokenizer, end: str | None = None) -> None:
        if end is not None and inner.token_to_id(end) is None:
            raise UserError(f"the end-of-text token {end!r} is not in the tokenizer's vocabulary.")
        self._inner = inner
        self._inner.no_truncation()
        self._inner.no_padding()
        self._end = end or next((name for name in ENDS if inner.token_to_id(name) is not None), None)
        self.end = None if self._end is None else inner.token_to_id(self._end)
        # By the highest id, not the number of entries: some vocabularies have gaps.
        self._vocab = 1 + max(inner.get_vocab().values(), default=-1)
        if self._vocab < 1:
            raise UserError("the tokenizer's vocabulary is empty.")

    @property
    def vocab(self) -> int:
        return self._vocab

    def encode(self, text: str) -> np.ndarray:
        # The library accepts only valid Unicode; invalid bytes become replacement characters.
        clean = utf8(text).decode("utf-8", "replace")
        # "Fast" omits the offsets of tokens in the text, which are not needed here.
        (encoding,) = self._inner.encode_batch_fast([clean], add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int64)

    def decode(self, ids: Iterable[int] | np.ndarray) -> str:
        text: str = self._inner.decode(self.checked(ids).tolist(), skip_special_tokens=False)
        return text

    def keeps_text(self, ids: np.ndarray) -> bool:
        """False if the text was normalised, or unknown tokens occur."""
        unknown = getattr(self._inner.model, "unk_token", None)
        number = None if unknown is None else self._inner.token_to_id(unknown)
        return self._inner.normalizer is None and (number is None or not bool((ids == number).any()))

    def as_dict(self) -> dict[str, object]:
        digest = hashlib.sha256(self._inner.to_str().encode()).hexdigest()
        return {"tokenizer": "hf", "vocab": self.vocab, "end": self._end, "sha256": digest}

    def save(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._inner.save(str(folder / FILE))
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self._end}
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def open_file(path: Path) -> HuggingFace:
    """The tokenizer of a tokenizer.json, or of the folder that contains one."""
    file = path / FILE if path.is_dir() else path
    if not file.is_file():
        raise UserError(f"no tokenizer at {path}: looked for {file}.")
    try:
        inner = library().Tokenizer.from_file(str(file))
    except UserError:
        raise
    except Exception as wrong:  # the library raises plain Exception
        raise UserError(f"{file} is not a tokenizer of the `tokenizers` library: {wrong}") from wrong
    return HuggingFace(inner, _end_of(file.parent / CONFIG))


def _end_of(config: Path) -> str | None:
    if not config.is_file():
        return None
    document = read_json(config, constants=True)
    end = document.get("eos_token") if isinstance(document, dict) else None
    if isinstance(end, dict):  # older configs write the token with its properties
        end = end.get("content")
    return end if isinstance(end, str) else None


def library() -> Any:
    """The `tokenizers` package, imported when it is first needed."""
    try:
        import tokenizers
    except ImportError:
        raise UserError("this tokenizer needs the `tokenizers` package: pip install 'plait[hf]'.") from None
    return tokenizers


END = "<|endoftext|>"
SMALLEST = 257  # every byte, and the end of a text


def learn_bpe(texts: Iterable[str], *, size: int = 8192) -> HuggingFace:
    """Merge until there are `size` ids, or no pair that occurs twice is left."""
    if size < SMALLEST:
        raise UserError(f"size={size} given; BPE starts from {SMALLEST} ids: the bytes and {END}.")
    hf = library()
    inner = hf.Tokenizer(hf.models.BPE())
    inner.pre_tokenizer = hf.pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = hf.decoders.ByteLevel()
    trainer = hf.trainers.BpeTrainer(
        vocab_size=size,
        min_frequency=2,
        special_tokens=[END],
        initial_alphabet=hf.pre_tokenizers.ByteLevel.alphabet(),  # so that no text has an unknown token
        show_progress=False,
    )
    clean = (utf8(text).decode("utf-8", "replace") for text in texts)
    inner.train_from_iterator(clean, trainer)
    return HuggingFace(inner, END)
