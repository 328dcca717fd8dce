"""`plait eval` from a run's folder to tables, figures and records."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import plait
from plait.cli import eval as verb
from plait.core.errors import UserError
from plait.data import open_corpus
from plait.evals.perplexity import PerplexityEvaluation
from plait.model import build
from plait.training.recipe import Budget, Job, Recipe, fitted
from plait.training.run import Run, folder_of

STORY = "The tide went out. Gulls walked on the sand. Nobody had seen the ferry for a week. " * 60


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PLAIT_STORE", raising=False)
    monkeypatch.delenv("PLAIT_CACHE", raising=False)
    (tmp_path / "story.txt").write_text(STORY)
    return tmp_path


SPEC = "d=16 | attn[heads=2] swiglu[inner=16]"


def make_run(spec: str = SPEC, seed: int = 0, data: str = "story.txt", seq_len: int = 16) -> Run:
    """What a training leaves behind, with the weights it began with."""
    tokenizer = "bytes" if data.endswith(".txt") else None
    corpus = open_corpus(data, tokenizer)
    job = Job(fitted(spec, corpus), corpus, Recipe(seq_len=seq_len), Budget(steps=1), seed)
    run = Run(folder_of(job.key))
    run.folder.mkdir(parents=True)
    corpus.tokenizer.save(run.folder / "tokenizer")
    run.write_about({"key": job.key, "config": job.config(), "data": data, "tokenizer": tokenizer})
    run.save_weights(dict(build(job.arch, seed=seed).named_parameters()))
    return run


def plait_eval(*arguments: str) -> str:
    app = typer.Typer()
    app.command()(verb.command)
    return CliRunner().invoke(app, list(arguments), catch_exceptions=False).stdout


def documents(*arguments: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(plait_eval(*arguments, "--json"))["evaluations"]
    return found


def test_a_table_for_people(folder: Path) -> None:
    run = make_run()
    said = plait_eval("latest", "--on", "perplexity,per-token", "--length", "8", "--set", "documents=4")
    assert run.name in said
    assert "P(8)" in said
    assert said.count("wrote ") == 2
    assert {path.name for path in (run.folder / "evals").iterdir()} == {
        "per-token-loss.svg",
        "perplexity-by-length.svg",
    }


def test_a_long_text_says_how_to_read_less_of_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A million tokens took minutes on a small text's model, and nothing said that there is an option."""
    told: list[str] = []
    run, size = make_run(), len(open_corpus("story.txt", "bytes").tokens("test"))
    for longest in (size, size - 1):
        monkeypatch.setattr("plait.evals.perplexity.LONG", longest)
        with plait.open_store(f"sqlite:///{longest}.db") as store:
            plait.evaluate(run.folder, store=store, on_progress=lambda what, *_: told.append(what))
    assert set(told[: len(told) // 2]) == {f"perplexity, {run.name}, {size} tokens"}
    assert set(told[len(told) // 2 :]) == {
        f"perplexity, {run.name}, {size} tokens; --set tokens=100000 reads fewer",
    }


def test_nothing_is_measured_twice(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_run()
    (first,) = documents("latest", "--length", "8", "--stride", "4")
    assert first["settings"]["stride"] == 4
    assert first["result"]["tokens"] == len(open_corpus("story.txt", "bytes").tokens("test")) - 1
    assert first["result"]["bits_per_character"] == first["result"]["bits_per_byte"]  # a byte is a token is a character
    monkeypatch.setattr(PerplexityEvaluation, "measure", lambda *_: pytest.fail("measured again"))
    (again,) = documents("latest", "--length", "8", "--stride", "4")
    assert again == {**first, "stored": True}


def test_two_runs_share_a_picture(folder: Path) -> None:
    names = [make_run(seed=seed).name for seed in (0, 1)]
    found = documents(*names, "--on", "extrapolation", "--set", "documents=3", "--out", "pictures")
    assert [one["run"] for one in found] == names
    drawn = folder / "pictures" / "extrapolation-perplexity-by-length.svg"
    assert found[0]["figures"] == found[1]["figures"]
    assert all(name in drawn.read_text() for name in names)


def test_unequal_conditions_are_said_in_each_row_and_on_the_picture(folder: Path) -> None:
    (folder / "other.txt").write_text("Snow lay on the hills. " * 300)
    first, second = make_run(), make_run(data="other.txt", seq_len=24)
    said = plait_eval(first.name, second.name, "--on", "perplexity,per-token", "--set", "documents=3", "--out", "p")
    rows = [next(line for line in said.splitlines() if line.startswith(run.name)) for run in (first, second)]
    assert ["story.txt, test" in row and "length 16" in row for row in rows] == [True, False]
    assert ["other.txt, test" in row and "length 24" in row for row in rows] == [False, True]
    assert "not evaluated under equal conditions" in said
    assert "story.txt" not in said.splitlines()[0]
    drawn = (folder / "p" / "per-token-loss.svg").read_text()
    assert all(f"{run.name}, {data}, test" in drawn for run, data in ((first, "story.txt"), (second, "other.txt")))
    equal = plait_eval(first.name, second.name, "--data", "story.txt", "--length", "16")
    assert "story.txt, test; length 16" in equal.splitlines()[0]
    assert "equal conditions" not in equal


def test_other_data_is_read_with_the_runs_tokenizer(folder: Path) -> None:
    make_run()
    (folder / "other.txt").write_text("Snow lay on the hills. " * 300)
    (found,) = documents("latest", "--data", "other.txt", "--split", "validation")
    assert found["data"]["split"] == "validation"
    with pytest.raises(UserError, match="another tokenizer"):
        plait_eval("latest", "--data", "builtin:dna")


def test_a_known_entropy_stands_beside_the_loss(folder: Path) -> None:
    make_run(data="builtin:language")
    (found,) = documents("latest", "--set", "tokens=500")
    assert 0 < found["result"]["entropy"] < found["result"]["loss"]
    assert f"{found['result']['entropy']:.4f}" in plait_eval("latest", "--set", "tokens=500")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--on", "perplexty"], "Did you mean 'perplexity'"),
        (["--set", "documents=4"], "perplexity has no setting 'documents'"),
        (["--set", "tokens"], "--set tokens: write key=value"),
        (["--on", "maps", "--stride", "4"], "maps has no setting 'stride'"),
        (["--memory", "4"], "xl-attn"),
        (["--split", "tset"], "Did you mean 'test'"),
        (["--device", "abacus"], "--device abacus"),
        (["--on", "needle"], "at least"),
    ],
)
def test_mistakes(folder: Path, arguments: list[str], message: str) -> None:
    make_run()
    with pytest.raises(UserError, match=message):
        plait_eval("latest", *arguments)


def test_a_text_that_changed_since_the_training_is_said(folder: Path) -> None:
    """Its test split may hold what was the training split."""
    run = make_run()
    assert "has changed" not in plait_eval(run.name, "--data", "story.txt")
    (folder / "story.txt").write_text("Snow lay on the hills. " * 300 + STORY)
    said = plait_eval(run.name, "--data", "story.txt")
    assert f"story.txt has changed since {run.name} was trained on it: its test split may hold text that was" in said
    assert documents(run.name, "--data", "story.txt")[0]["data"]["changed"]


def test_several_tokenizers_of_one_text_are_said(folder: Path) -> None:
    """Such as one learned before an edit of the text and one learned after it."""
    first = make_run()
    learned = open_corpus("story.txt", "words").tokenizer
    second = make_run(SPEC.replace("d=16", f"d=16 vocab={max(256, learned.vocab)}"), seed=1)
    both = (first.name, second.name, "--data", "story.txt")
    assert "different tokenizers" not in plait_eval(*both)
    learned.save(second.folder / "tokenizer")
    said = plait_eval(*both)
    assert "the runs read story.txt with different tokenizers: compare bits per byte, not losses per token" in said
