"""A text, and terms on which tiny models learn it in a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from plait.data import Corpus, open_corpus
from plait.racing.leg import Course
from plait.records import Store, open_store
from plait.training.recipe import Recipe
from plait.training.track import Text, track_recipe

RECIPE = track_recipe(Recipe(batch=2, seq_len=16, lr=4e-3), warmup=3)


@pytest.fixture(scope="session")
def corpus() -> Corpus:
    return open_corpus("builtin:language")


@pytest.fixture(scope="session")
def course(corpus: Corpus) -> Course:
    return Course("builtin:language", None, corpus.fingerprint, RECIPE, held_out=96)


@pytest.fixture
def text(corpus: Corpus) -> Text:
    return Text.of(corpus, RECIPE.seq_len, 96)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/plait.db") as opened:
        yield opened
