"""L(i), P(l) and smoothing on losses that are known; reading in chunks equals reading at once."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from plait.core.errors import UserError
from plait.evals.evaluation import Subject
from plait.evals.losses import token_losses
from plait.evals.per_token import (
    PerTokenEvaluation,
    context_perplexity,
    documents,
    doubling,
    losses_by_position,
    smooth,
    windows,
)

from .conftest import Letters, language_model, text_of

MIXED = {
    "FoX (Pro)": "attn[heads=2 forget=full pos=none kv_shift=true qk_norm=per-head out_gate=true out_norm=true]",
    "rotary with a window": "attn[heads=2 window=5]",
    "Mamba": "mamba",
    "delta rule": "deltanet[head_dim=8]",
    "relative": "xl-attn[heads=2]",
}


@pytest.mark.parametrize("layer", MIXED.values(), ids=MIXED)
@pytest.mark.parametrize("chunk", [1, 7, 16])
def test_chunks_equal_one_forward_pass(layer: str, chunk: int) -> None:
    model = language_model(f"d=16 vocab=31 | {layer} swiglu[inner=16]", scale=4.0)
    rows = torch.from_numpy(windows(text_of(200), 32))
    whole = token_losses(model, rows[:, :-1], rows[:, 1:])
    parts = token_losses(model, rows[:, :-1], rows[:, 1:], chunk=chunk)
    assert whole.std() > 0.05  # the tokens matter
    torch.testing.assert_close(parts, whole, rtol=1e-9, atol=1e-9)


def test_batches_and_chunks_leave_the_losses_alone() -> None:
    model = language_model("d=16 vocab=31 | attn[heads=2 forget=full pos=none] mlp[inner=16]")
    rows = windows(text_of(400), 24)
    seen: list[tuple[int, int]] = []
    one = losses_by_position(model, rows, batch=len(rows), chunk=100)
    several = losses_by_position(model, rows, batch=3, chunk=5, progress=lambda *at: seen.append(at))
    np.testing.assert_allclose(one, several, rtol=1e-9)
    assert one.dtype == np.float64
    assert one.shape == (len(rows), 24)
    assert seen[-1] == (len(rows), len(rows))


def test_windows_cover_the_text_side_by_side() -> None:
    text = np.arange(26, dtype=np.uint16)
    rows = windows(text, 5)
    assert rows.tolist() == [list(range(5 * w, 5 * w + 6)) for w in range(5)]
    assert windows(text, 5, most=2)[:, 0].tolist() == [0, 20]  # evenly spread
    assert windows(text, 25).shape == (1, 26)
    with pytest.raises(UserError, match="27 tokens; the text has 26"):
        windows(text, 26)


def test_documents_start_where_they_start() -> None:
    end = 0
    text = np.array([5, 6, 7, 8, end, 1, 2, end, 3, 4, 5, 6, 7], dtype=np.uint16)
    assert documents(text, end, 3).tolist() == [[5, 6, 7, 8], [3, 4, 5, 6]]
    assert documents(text, end, 3, most=1).tolist() == [[5, 6, 7, 8]]
    with pytest.raises(UserError, match="the longest has 5"):
        documents(text, end, 5)


def test_perplexity_up_to_a_length_is_of_the_mean_loss() -> None:
    loss = np.array([4.0, 2.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.5])
    found = context_perplexity(loss, [1, 2, 4, 8])
    np.testing.assert_allclose(np.log(found), [4.0, 3.0, 2.0, 1.25], rtol=1e-14)


@pytest.mark.filterwarnings("error")
def test_a_model_that_diverged_has_a_perplexity_that_can_be_stored() -> None:
    assert np.isfinite(context_perplexity(np.full(4, 1e11), [1, 4])).all()


@pytest.mark.parametrize(
    ("longest", "lengths"),
    [
        (65536, [512, 1024, 2048, 4096, 8192, 16384, 32768, 65536]),
        (64, [4, 8, 16, 32, 64]),
        (100, [4, 8, 16, 32, 64, 100]),
        (1, [1]),
    ],
)
def test_lengths_double(longest: int, lengths: list[int]) -> None:
    assert doubling(longest) == lengths


@pytest.mark.parametrize("window", [1, 101, 1001])
def test_smoothing_is_a_centred_mean(window: int) -> None:
    values = np.random.default_rng(0).normal(size=3000)
    half = window // 2
    found = smooth(values, window)
    inner = [values[i - half : i + half + 1].mean() for i in range(half, 3000 - half)]
    np.testing.assert_allclose(found[half : 3000 - half], inner, atol=1e-12)
    # Towards the ends the window shrinks and stays centred.
    for i in range(0, half, max(1, half // 7)):
        assert found[i] == pytest.approx(values[: 2 * i + 1].mean(), abs=1e-12)
        assert found[-1 - i] == pytest.approx(values[len(values) - 2 * i - 1 :].mean(), abs=1e-12)


@pytest.mark.parametrize("length", [50, 101, 400])
def test_smoothing_leaves_a_line_alone(length: int) -> None:
    line = 3.0 - 0.01 * np.arange(length)
    np.testing.assert_allclose(smooth(line, 101), line, atol=1e-12)


def test_a_window_without_a_centre_is_refused() -> None:
    with pytest.raises(UserError, match="odd"):
        smooth(np.zeros(9), 100)


def test_the_evaluation_agrees_with_its_parts(subject: Subject) -> None:
    made = PerTokenEvaluation(documents=5).resolved(subject)
    found = made.measure(subject)
    rows = windows(subject.tokens, 32, 5)
    loss = losses_by_position(subject.model, rows).mean(axis=0)
    assert found["sequences"] == 5
    assert found["positions"] == list(range(1, 33))
    np.testing.assert_allclose(found["loss_at"], loss)
    assert found["perplexity"][-1] == pytest.approx(math.exp(found["loss"]))
    columns, body = made.table({"a run": found})
    assert list(columns) == ["run", "P(2)", "P(4)", "P(8)", "P(16)", "P(32)", "sequences"]
    assert body[0][0] == "a run"
    assert set(made.figures({"a": found, "b": found})) == {"per-token-loss", "perplexity-by-length"}


def test_documents_need_a_token_between_them(subject: Subject) -> None:
    made = PerTokenEvaluation(cut="documents").resolved(subject)
    with pytest.raises(UserError, match="no end-of-text"):
        made.measure(subject)
    letters = Letters()
    letters.end = int(subject.tokens[0])
    told = Subject(subject.model, subject.tokens, 8, letters)  # type: ignore[arg-type]
    assert PerTokenEvaluation(cut="documents").resolved(told).measure(told)["sequences"] > 1
