"""From text to token ids and back: bytes, characters, words, BPE."""

from plait.data.tokenizers.table import TOKENIZERS, load_tokenizer, tokenizer_recipe
from plait.data.tokenizers.tokenizer import Tokenizer

__all__ = ["TOKENIZERS", "Tokenizer", "load_tokenizer", "tokenizer_recipe"]
