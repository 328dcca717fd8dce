"""Byte-level byte-pair encoding (Sennrich et al. 2016; on bytes as in GPT-2), learned with Hugging Face's library."""

from __future__ import annotations

from collections.abc import Iterable

from plait.core.errors import UserError
from plait.data.tokenizers.huggingface import HuggingFace, library
from plait.data.tokenizers.tokenizer import utf8

END = "<|endoftext|>"
SMALLEST = 257  # every byte, and the end of a text


def learn(texts: Iterable[str], *, size: int = 8192) -> HuggingFace:
    """Merges until there are `size` ids, or nothing that occurs twice is left to merge."""
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
