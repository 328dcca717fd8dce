"""Text as tokens: corpora, tokenizers, and batches that depend only on the step. NumPy only."""

from plait.data.corpora import Corpus, open_corpus
from plait.data.sources import SPLITS
from plait.data.stream import IGNORE, Segments, Windows, mask_tokens
from plait.data.tokenizer_table import load_tokenizer
from plait.data.tokenizers import Tokenizer

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
