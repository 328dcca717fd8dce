"""Every token is counted once, whatever the cut; contexts are as long as they are said to be."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from plait.core.errors import UserError
from plait.data import open_corpus
from plait.evals.evaluation import Subject
from plait.evals.perplexity import PerplexityEvaluation, clamped, perplexity, perplexity_with_memory, spans
from plait.model.language_model import LanguageModel

from .conftest import Letters, language_model, text_of

XL = "d=16 vocab=31 | (xl-attn[heads=2] mlp[inner=16])x2"


def loss_given(model: LanguageModel, text: np.ndarray, start: int, at: int) -> float:
    """−log p of the token at `at` when the model reads the text from `start` on: the slow and obvious way."""
    tokens = torch.from_numpy(text[start:at].astype(np.int64))[None]
    with torch.no_grad():
        scores = model(tokens)[0, -1]
    return F.cross_entropy(scores, torch.tensor(int(text[at]))).item()


@given(st.integers(2, 200), st.integers(1, 40), st.data())
def test_spans_score_every_token_but_the_first_once(tokens: int, length: int, data: st.DataObject) -> None:
    stride = data.draw(st.integers(1, length))
    scored = []
    for span in spans(tokens, length, stride):
        assert 0 < span.stop - span.start <= length
        assert span.scored - span.start >= length - stride or span.start == 0
        scored += range(span.scored + 1, span.stop + 1)
    assert scored == list(range(1, tokens))


def test_windows_side_by_side(fox: LanguageModel) -> None:
    text = text_of(23)
    found = perplexity(fox, text, length=5)
    by_hand = [loss_given(fox, text, 5 * ((at - 1) // 5), at) for at in range(1, 23)]
    assert found.tokens == 22
    assert found.nats == pytest.approx(sum(by_hand), rel=1e-12)


def test_a_sliding_window_keeps_its_context(fox: LanguageModel) -> None:
    text = text_of(23)
    found = perplexity(fox, text, length=6, stride=1)
    by_hand = [loss_given(fox, text, max(0, at - 6), at) for at in range(1, 23)]
    assert found.nats == pytest.approx(sum(by_hand), rel=1e-12)


@settings(max_examples=10, deadline=None)
@given(batch=st.integers(1, 9))
def test_the_batch_does_not_matter(batch: int) -> None:
    model, text = language_model("d=8 vocab=31 | attn[heads=2] mlp[inner=8]"), text_of(83)
    alone = perplexity(model, text, length=7, stride=3, batch=1)
    assert perplexity(model, text, length=7, stride=3, batch=batch).nats == pytest.approx(alone.nats, rel=1e-12)


def test_a_memory_of_everything_is_one_forward_pass() -> None:
    # Layers that see all inputs of the layer below, from the first token on, are the whole model on the whole text.
    model, text = language_model(XL), text_of(40)
    whole = perplexity(model, text, length=39)
    assert perplexity_with_memory(model, text, length=4, memory=40).nats == pytest.approx(whole.nats, rel=1e-11)
    short = perplexity_with_memory(model, text, length=4, memory=2)
    assert abs(short.loss - whole.loss) > 1e-4


def test_streams_begin_without_memory_and_miss_nothing() -> None:
    model, text = language_model(XL), text_of(41)
    parts = [
        perplexity_with_memory(model, text[a : b + 1], length=4, memory=8) for a, b in ((0, 14), (14, 28), (28, 40))
    ]
    found = perplexity_with_memory(model, text, length=4, memory=8, streams=3)
    assert found.tokens == 40
    assert found.nats == pytest.approx(sum(part.nats for part in parts), rel=1e-11)


def test_distances_are_clamped_for_a_while() -> None:
    model, text = language_model(XL), text_of(40)
    free = perplexity_with_memory(model, text, length=4, memory=20)
    tight = perplexity_with_memory(model, text, length=4, memory=20, clamp=2)
    assert abs(free.loss - tight.loss) > 1e-6
    assert perplexity_with_memory(model, text, length=4, memory=20) == free
    with pytest.raises(RuntimeError), clamped(model, 3):
        raise RuntimeError
    assert {block.mixer.clamp for block in model.backbone.blocks if hasattr(block.mixer, "clamp")} == {0}


def test_an_adaptive_softmax_is_scored_like_its_log_probabilities() -> None:
    model = language_model("d=16 vocab=31 embed=adaptive div=2 cutoffs=8/20 | attn[heads=2] mlp[inner=16]")
    text = text_of(30)
    with torch.no_grad():
        log_p = model(torch.from_numpy(text[:-1].astype(np.int64))[None])[0]
    by_hand = -log_p.gather(-1, torch.from_numpy(text[1:].astype(np.int64))[:, None]).sum().item()
    assert perplexity(model, text, length=29).nats == pytest.approx(by_hand, rel=1e-11)


def test_perplexity_is_two_to_the_bits(subject: Subject) -> None:
    found = PerplexityEvaluation(length=32).resolved(subject).measure(subject)
    assert found["tokens"] == 699
    assert found["perplexity"] == pytest.approx(2 ** found["bits_per_token"])
    assert found["perplexity"] == pytest.approx(math.exp(found["loss"]))
    # Two characters a token.
    assert found["bits_per_character"] == pytest.approx(found["loss"] / math.log(2) / 2)


def test_a_token_a_character_gives_the_loss_in_bits() -> None:
    model = language_model("d=8 vocab=128 | attn[heads=2] mlp[inner=8]")
    text = Letters().encode("The heron stood still. Nobody knew for how long.")
    subject = Subject(model, text, trained_length=16, tokenizer=Letters(), characters=len(text), bytes=len(text))  # type: ignore[arg-type]
    found = PerplexityEvaluation().resolved(subject).measure(subject)
    assert found["bits_per_character"] == pytest.approx(found["loss"] / math.log(2))
    assert found["bits_per_byte"] == pytest.approx(found["bits_per_character"])


def test_a_tokenizer_that_drops_characters_gives_lower_bounds_and_says_so(tmp_path) -> None:
    """Never fewer bits per character than per byte: no character is less than a byte."""
    (tmp_path / "a.txt").write_text("\n".join(f"{'  ' * (n % 9)}ein   Wört {n % 13}" for n in range(2000)))
    corpus = open_corpus(str(tmp_path / "a.txt"), "words", cache=tmp_path / "cache")
    model = language_model(f"d=8 vocab={corpus.vocab} | attn[heads=2] mlp[inner=8]")
    text, sizes = corpus.tokens("test"), (corpus.characters("test"), corpus.bytes("test"))
    assert sizes[1] > sizes[0]
    evaluation = PerplexityEvaluation()
    subject = Subject(model, text, 16, corpus.tokenizer, *sizes)
    found = evaluation.resolved(subject).measure(subject)
    assert found["bits_per_character"] > found["bits_per_byte"]
    assert found["text_kept"] is False
    columns, ((_, *cells),) = evaluation.table({"a run": found})
    assert [cells[list(columns).index(name) - 1][0] for name in ("bits/character", "bits/byte")] == ["≥", "≥"]


def test_settings_are_settled_before_they_are_stored(subject: Subject) -> None:
    assert PerplexityEvaluation().resolved(subject).settings() == {
        "length": 32, "stride": 32, "memory": 0, "streams": 1, "clamp": 0, "tokens": 700,
    }  # fmt: skip
    with pytest.raises(UserError, match="stride"):
        PerplexityEvaluation(stride=4, memory=8).resolved(subject)
    with pytest.raises(UserError, match="length=700 given, but it must be less than the 700 tokens of the text"):
        PerplexityEvaluation(length=700).resolved(subject)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (text_of(1), {"length": 4}, "nothing to predict"),
        (text_of(9), {"length": 0}, "at least 1"),
        (text_of(9), {"length": 4, "stride": 5}, "stride"),
        (text_of(9, vocab=1) + 40, {"length": 4}, "token 40"),
    ],
)
def test_refusals(fox: LanguageModel, text: np.ndarray, options: dict[str, int], message: str) -> None:
    with pytest.raises(UserError, match=message):
        perplexity(fox, text, **options)


def test_learned_positions_end_somewhere() -> None:
    model = language_model("d=8 vocab=31 pos=learned max_len=16 | attn[heads=2] mlp[inner=8]")
    with pytest.raises(UserError, match="max_len=16"):
        perplexity(model, text_of(40), length=17)


def test_memory_is_for_relative_attention(fox: LanguageModel) -> None:
    with pytest.raises(UserError, match="xl-attn"):
        perplexity_with_memory(fox, text_of(20), length=4, memory=4)


def test_a_diverged_model_is_not_given_a_number(fox: LanguageModel) -> None:
    with torch.no_grad():
        fox.backbone.embedding.first_table.fill_(math.nan)
    with pytest.raises(UserError, match="not finite"):
        perplexity(fox, text_of(20), length=4)
