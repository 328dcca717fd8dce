"""Corpora made by hand, and a cache that belongs to the test."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from plait.data import Corpus, open_corpus

Open = Callable[..., Corpus]


@pytest.fixture
def opened(tmp_path: Path) -> Open:
    """`open_corpus` with a cache of its own."""

    def run(given: str | Path, tokenizer: str | None = None, **more: object) -> Corpus:
        return open_corpus(str(given), tokenizer, cache=tmp_path / "cache", **more)  # type: ignore[arg-type]

    return run


@pytest.fixture
def text_of() -> Callable[[Corpus, str], str]:
    return lambda corpus, split: corpus.tokenizer.decode(corpus.tokens(split))
