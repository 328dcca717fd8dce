"""Tiny models, texts and tokenizers for the evaluations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plait.evals.evaluation import Subject
from plait.model import build
from plait.model.language_model import LanguageModel

FOX = "d=16 vocab=31 | (attn[heads=2 forget=full pos=none] swiglu[inner=16])x2"


def language_model(text: str, seed: int = 0, scale: float = 8.0) -> LanguageModel:
    """A model in fp64 whose weights are large enough for tokens to matter."""
    model = build(text, seed=seed, dtype=torch.float64)
    assert isinstance(model, LanguageModel)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    return model.eval()


def text_of(tokens: int, vocab: int = 31, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(vocab, size=tokens).astype(np.uint16)


class Letters:
    """One token a character, of those below 128."""

    vocab = 128
    end: int | None = None

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(c) for c in text], dtype=np.int64)

    def decode(self, ids: np.ndarray) -> str:
        return "".join(chr(int(i)) for i in ids)

    def keeps_text(self, ids: np.ndarray) -> bool:
        return True


@pytest.fixture
def fox() -> LanguageModel:
    return language_model(FOX)


@pytest.fixture
def subject(fox: LanguageModel) -> Subject:
    return Subject(fox, text_of(700), trained_length=32, characters=1400)
