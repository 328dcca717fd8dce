"""Text as tokens: corpora, tokenizers, and batches that depend only on the step. NumPy only."""

from plait.data.corpus import SPLITS, Corpus
from plait.data.opening import open_corpus
from plait.data.stream import IGNORE, Segments, Windows, mask_tokens
from plait.data.tokenizers import Tokenizer, load_tokenizer

__all__ = [
    "IGNORE",
    "SPLITS",
    "Corpus",
    "Segments",
    "Tokenizer",
    "Windows",
    "load_tokenizer",
    "mask_tokens",
    "open_corpus",
]
