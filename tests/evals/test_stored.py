"""What was measured once is found again; anything that changes the result changes the key."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plait.core.errors import UserError
from plait.evals import evaluation as table
from plait.evals.evaluation import Evaluation, Subject, evaluated, weights_hash
from plait.evals.perplexity import PerplexityEvaluation
from plait.model import build
from plait.model.language_model import Encoder
from plait.records import open_store
from plait.records.record import json_text

from .conftest import FOX, language_model, text_of

DATA = {"name": "a text", "fingerprint": "f"}


def test_nothing_is_measured_twice(subject: Subject, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        first, known = evaluated(PerplexityEvaluation(), subject, data=DATA, store=store)
        assert not known
        assert first.kind == "eval"
        monkeypatch.setattr(PerplexityEvaluation, "measure", lambda *_: pytest.fail("measured again"))
        again, known = evaluated(PerplexityEvaluation(length=32), subject, data=DATA, store=store)  # said, not implied
        assert known
        assert again == first


def test_what_decides_the_result_decides_the_key(subject: Subject, tmp_path: Path) -> None:
    other_weights = replace(subject, model=language_model(FOX, seed=1))
    other_text = {"name": "a text", "fingerprint": "g"}
    with open_store(f"sqlite:///{tmp_path}/store.db") as store:
        keys = {
            evaluated(evaluation, given, data=data, store=store)[0].key
            for evaluation, given, data in (
                (PerplexityEvaluation(), subject, DATA),
                (PerplexityEvaluation(length=16), subject, DATA),
                (PerplexityEvaluation(), other_weights, DATA),
                (PerplexityEvaluation(), subject, other_text),
            )
        }
    assert len(keys) == 4


def test_a_single_weight_changes_the_hash() -> None:
    model = language_model(FOX)
    before = weights_hash(model)
    assert weights_hash(language_model(FOX)) == before
    with torch.no_grad():
        model.backbone.embedding.first_table[3, 3] += 1e-9
    assert weights_hash(model) != before


def test_an_encoder_has_no_perplexity(tmp_path: Path) -> None:
    model = build("d=16 vocab=31 kind=encoder | attn[heads=2 causal=false] mlp[inner=16]")
    assert isinstance(model, Encoder)
    subject = Subject(model, text_of(50), 16)
    with open_store(f"sqlite:///{tmp_path}/store.db") as store, pytest.raises(UserError, match="for language models"):
        evaluated(PerplexityEvaluation(), subject, data=DATA, store=store)


@pytest.mark.parametrize("name", table.names())
def test_every_evaluation_keeps_the_contract(name: str) -> None:
    evaluation = table.load_evaluation(name)
    assert isinstance(evaluation, Evaluation)
    assert evaluation.name == name
    assert evaluation.what
    json_text(evaluation.settings(), "settings")
    text = {key: str(value) for key, value in evaluation.settings().items()}
    assert evaluation.with_settings(text) == evaluation
    assert evaluation.with_settings({"length": "48"}).settings()["length"] == 48
    with pytest.raises(UserError, match="Did you mean 'length'"):
        evaluation.with_settings({"lenght": "48"})
    with pytest.raises(UserError, match="a whole number"):
        evaluation.with_settings({"length": "long"})


#: Those that need a tokenizer have tests of their own.
OF_TEXT = ("needle", "ruler", "phonebook")


@pytest.mark.parametrize("name", [name for name in table.names() if name not in OF_TEXT])
def test_results_are_plain_and_enough_to_draw(name: str, subject: Subject) -> None:
    evaluation = table.load_evaluation(name).resolved(subject)
    result = evaluation.measure(subject)
    json_text(result, "result")
    columns, rows = evaluation.table({"one": result, "two": result})
    assert rows
    assert all(len(row) == len(columns) for row in rows)
    assert all(picture.startswith("<svg") for picture in evaluation.figures({"one": result}).values())


def test_an_unknown_evaluation_is_refused() -> None:
    with pytest.raises(UserError, match="Did you mean 'per-token'"):
        table.load_evaluation("per_token")
