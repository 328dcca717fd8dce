"""The language's entropy is the truth: no statistic of it is below, the right one reaches it."""

from __future__ import annotations

import hashlib
import time

import numpy as np
import pytest

from plait.data import open_corpus
from plait.data.builtin import SUCCESSORS, TOKENS, language_chain


def conditional_entropy(tokens: np.ndarray, order: int) -> float:
    """Nats a token, estimated from counts, when the last `order` tokens are known."""
    places = np.lib.stride_tricks.sliding_window_view(tokens.astype(np.int64), order + 1)
    code = places @ (TOKENS ** np.arange(order, -1, -1))
    counts = np.bincount(code, minlength=TOKENS ** (order + 1)).reshape(-1, TOKENS)
    share = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    return float(-np.sum(counts * np.log(np.where(share > 0, share, 1))) / counts.sum())


def test_the_stated_entropy_is_that_of_the_text() -> None:
    corpus = open_corpus("builtin:language")
    assert corpus.entropy == pytest.approx(1.3702691786, rel=1e-9)
    train = corpus.tokens("train")
    assert conditional_entropy(train, 2) == pytest.approx(corpus.entropy, rel=1e-3)
    assert conditional_entropy(train[:4_000_000], 3) == pytest.approx(corpus.entropy, rel=4e-3)  # nothing is further
    assert conditional_entropy(train, 1) > 1.3 * corpus.entropy  # one token does not suffice
    for split in ("validation", "test"):
        # The loss of one who knows the language_chain, on held-out text: what a perfect model would report.
        tokens = corpus.tokens(split).astype(np.int64)
        assert known_loss(tokens) == pytest.approx(corpus.entropy, rel=0.004)


def known_loss(tokens: np.ndarray) -> float:
    made = language_chain()
    follows = made.token_C.reshape(TOKENS, SUCCESSORS)
    place = np.full((TOKENS, TOKENS), -1)
    np.put_along_axis(place, follows, np.arange(SUCCESSORS)[None], axis=1)
    steps = place[tokens[:-1], tokens[1:]]
    assert steps.min() >= 0, "a step that the language does not have: the walk is broken"
    contexts = tokens[:-1] * SUCCESSORS + steps
    return float(-np.log(made.transitions_CC[contexts[:-1], contexts[1:]]).mean())


def test_it_is_the_same_everywhere_and_quickly_made() -> None:
    open_corpus("builtin:language")
    started = time.process_time()
    corpus = open_corpus("builtin:language")
    assert time.process_time() - started < 4
    assert (corpus.vocab, len(corpus.tokens("train")), corpus.tokens("train").dtype) == (32, 8_388_608, np.uint8)
    digest = hashlib.sha256(corpus.tokens("validation").tobytes()).hexdigest()
    assert digest[:16] == "25982b57e118de98"
    splits = [corpus.tokens(split)[:1000].tobytes() for split in ("train", "validation", "test")]
    assert len(set(splits)) == 3
