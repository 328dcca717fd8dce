"""Next-sentence prediction (Devlin et al. 2019, arXiv:1810.04805, §3.1): pairs of texts, a two-way head, one loss."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.data import open_corpus
from plait.data.stream import Pairs, segments, with_boundaries
from plait.data.tokenizers import boundary_token
from plait.model.language_model import IGNORE
from plait.records import open_store
from plait.training.distributed import Processes
from plait.training.fit import Options, fit
from plait.training.recipe import Budget, Job, Recipe, fitted
from plait.training.resume import start_of
from plait.training.run import open_run
from plait.training.trainer import Trainer

ALONE = Processes(0, 1, torch.device("cpu"))
SPEC = "d=16 kind=encoder segments=2 pos=learned max_len=24 | attn[heads=2,causal=false] mlp[inner=24]"
RECIPE = Recipe(batch=8, seq_len=24, lr=1e-2, next_sentence=True)


def job(steps: int = 4, recipe: Recipe = RECIPE, **values: object) -> Job:
    corpus = open_corpus("builtin:language")
    chosen = recipe.with_values(values)
    return Job(fitted(SPEC, corpus), corpus, chosen, Budget(steps=steps), validation_tokens=256)


def test_half_of_the_second_texts_follow_and_the_others_come_from_elsewhere() -> None:
    tokens = np.arange(5000)  # a token is its place
    pairs = Pairs(tokens, seq_len=35, batch=16, seed=3)
    follows, cuts = [], []
    for step in range(40):
        found = pairs.rows(step)
        assert found.texts_BN.shape == (16, 32)
        for text, cut, next_one in zip(found.texts_BN, found.second_B, found.follows_B, strict=True):
            first, second = text[:cut], text[cut:]
            assert (np.diff(first) == 1).all()
            assert (np.diff(second) == 1).all()
            assert next_one == (second[0] == first[-1] + 1)
            assert next_one or abs(second[0] - first[-1]) >= 32  # not even the neighbourhood
        follows += found.follows_B.tolist()
        cuts += found.second_B.tolist()
    assert 0.44 < np.mean(follows) < 0.56  # 640 rows: 0.5 ± 3 standard errors
    assert (min(cuts), max(cuts)) == (8, 24)


def test_ranks_share_the_rows_of_one_process() -> None:
    pairs = Pairs(np.arange(2000), seq_len=16, batch=6, seed=0)
    whole, parts = pairs.rows(7), [pairs.rows(7, rank, 2) for rank in (0, 1)]
    for name in ("texts_BN", "second_B", "follows_B"):
        assert np.array_equal(getattr(whole, name), np.concatenate([getattr(part, name) for part in parts])), name


def test_a_row_is_boundary_first_boundary_second_boundary() -> None:
    texts, second = np.array([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10]]), np.array([2, 4])
    assert with_boundaries(texts, second, 0).tolist() == [[0, 1, 2, 0, 3, 4, 5, 0], [0, 6, 7, 8, 9, 0, 10, 0]]
    assert segments(second, 8).tolist() == [[0, 0, 0, 0, 1, 1, 1, 1], [0, 0, 0, 0, 0, 0, 1, 1]]


def test_the_loss_is_the_sum_of_both() -> None:
    trainer = Trainer(job(), 4, ALONE)
    batch, model = trainer.batches(0), trainer.model
    assert batch.segments_BT is not None
    assert batch.follows_B is not None
    boundary = boundary_token(trainer.job.corpus.tokenizer)
    assert (batch.tokens_BT[:, [0, -1]] == boundary).all()
    assert (batch.targets_BT[:, [0, -1]] == IGNORE).all()
    found, _ = trainer.objective(batch.tokens_BT, batch.targets_BT, None, batch.segments_BT, batch.follows_B)
    hidden = model.backbone(batch.tokens_BT, segments_BT=batch.segments_BT)
    logits = model.output(model.transform(hidden))
    dense, _, two = model.next_sentence
    first = two(torch.tanh(dense(hidden[:, 0])))
    expected = F.cross_entropy(logits.flatten(0, 1), batch.targets_BT.flatten(), ignore_index=-100)
    expected = expected + F.cross_entropy(first, batch.follows_B)
    assert found.item() == pytest.approx(expected.item(), rel=1e-6)


def test_gradient_accumulation_gives_the_gradient_of_the_whole_batch() -> None:
    whole, parts = Trainer(job(), 4, ALONE), Trainer(job(gradient_accumulation=4), 4, ALONE)
    together, apart = whole._backward(whole.batches(1)), parts._backward(parts.batches(1))
    assert float(together) == pytest.approx(float(apart), rel=1e-5)
    for (name, p), (_, q) in zip(whole.model.named_parameters(), parts.model.named_parameters(), strict=True):
        assert torch.allclose(p.grad, q.grad, atol=1e-6), name


def test_the_head_learns_the_pairs_it_is_shown() -> None:
    """The same batch over and over: it is told by heart which of its eight pairs are consecutive."""
    trainer = Trainer(job(steps=60), 60, ALONE)
    batch = trainer.batches(0)
    assert 0 < int(batch.follows_B.sum()) < 8

    def right() -> float:
        hidden = trainer.model.backbone(batch.tokens_BT, segments_BT=batch.segments_BT)
        found = trainer.model.next_sentence(hidden[:, 0]).argmax(-1)
        return float((found == batch.follows_B).float().mean())

    assert right() < 1
    trainer.batches = lambda step: batch
    while trainer.step < 60:
        trainer.advance()
    assert right() == 1


def test_a_run_is_saved_reopened_and_trained_further(tmp_path: Path) -> None:
    with open_store(f"sqlite:///{tmp_path}/runs.db") as store:
        one = open_run(fit(job(), ALONE, store, Options(tmp_path)).folder)
    assert one.config["recipe"]["next_sentence"] is True
    assert "next_sentence" not in job(next_sentence=False).config()["recipe"]
    heads = {name: value for name, value in one.weights().items() if name.startswith("next_sentence.")}
    assert sorted(heads) == [f"next_sentence.{n}.{part}" for n in (0, 2) for part in ("bias", "weight")]
    assert math.isfinite(one.model()(torch.zeros(1, 8, dtype=torch.long)).sum().item())
    further = Trainer(replace(job(), start=start_of(one)), 4, ALONE)
    for name, p in further.model.named_parameters():
        assert torch.equal(p.detach(), one.weights()[name]), name
    without = Trainer(replace(job(next_sentence=False), start=start_of(one)), 4, ALONE)
    assert without.model.next_sentence is None
    for name, p in without.model.named_parameters():
        assert torch.equal(p.detach(), one.weights()[name]), name


@pytest.mark.parametrize(
    ("spec", "values", "said"),
    [
        ("d=16 | attn[heads=2]", {}, "is for kind=encoder, not kind=lm"),
        (SPEC, {"seq_len": 7}, "need 8 tokens or more"),
    ],
)
def test_what_cannot_be_is_one_message(spec: str, values: dict[str, int], said: str) -> None:
    made = job(**values)
    with pytest.raises(UserError, match=said):
        Trainer(replace(made, arch=fitted(spec, made.corpus)), 4, ALONE)
