"""`plait generate` on a run: streamed text, JSON, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import typer
from typer.testing import CliRunner

from plait.cli import generate
from plait.core.errors import UserError
from plait.data.tokenizers import Bytes, Words
from plait.model import build
from plait.training.run import Run

app = typer.Typer()
app.command()(generate.command)

FOX = "d=32 vocab=256 | (fox[heads=2,qk_norm=per-head] swiglu)x2"


def made_run(folder: Path, spec: str, tokenizer) -> Path:
    """A run's folder without a training."""
    model = build(spec, seed=1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0 if parameter.dim() > 1 else 1.0)
    folder.mkdir()
    run = Run(folder)
    run.write_about({"key": "0" * 64, "config": {"spec": spec, "recipe": {"seq_len": 64}}, "tokenizer": "bytes"})
    run.save_weights(dict(model.named_parameters()))
    tokenizer.save(folder / "tokenizer")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> str:
    return str(made_run(tmp_path_factory.mktemp("runs") / "one", FOX, Bytes()))


def plait(*arguments: str, stdin: str | None = None):
    return CliRunner().invoke(app, list(arguments), input=stdin, catch_exceptions=False)


def document(*arguments: str, **options) -> dict:
    return json.loads(plait(*arguments, "--json", **options).stdout)


def test_text_streams_behind_its_prompt(run):
    said = plait(run, "Hello", "--tokens", "20", "--greedy")
    expected = document(run, "Hello", "--tokens", "20", "--greedy")
    assert said.exit_code == 0
    assert said.stdout == "Hello" + expected["completions"][0] + "\n"
    assert "20 tokens" in said.stderr


def test_json_says_everything(run):
    found = document(run, "one", "another", "--tokens", "8", "--seed", "3")
    assert found["prompts"] == ["one", "another"]
    assert found["tokens"] == [8, 8]
    assert found["ended"] == [False, False]
    assert found["tokens_per_second"] > 0
    assert found["peak_state_bytes"] >= found["state_bytes"] > 0
    assert found["dropped"] is None
    assert found["completions"] == document(run, "one", "another", "--tokens", "8", "--seed", "3")["completions"]
    assert found["completions"] != document(run, "one", "another", "--tokens", "8", "--seed", "4")["completions"]


def test_several_texts_come_one_after_the_other(run):
    said = plait(run, "one", "another", "--tokens", "8", "--greedy")
    first, second = document(run, "one", "another", "--tokens", "8", "--greedy")["completions"]
    assert said.stdout == f"one{first}\n\nanother{second}\n\n"


def test_a_prompt_from_standard_input(run):
    found = document(run, "-", "--tokens", "3", stdin="piped in")
    assert found["prompts"] == ["piped in"]


def test_forgetting_is_reported(run):
    long = "many words " * 40
    found = document(run, long, "--tokens", "5", "--forget", "1e-3")
    assert found["dropped"]["entries"] > 0
    assert found["state_bytes"] < document(run, long, "--tokens", "5")["state_bytes"]
    assert "cache entries" in plait(run, long, "--tokens", "5", "--forget", "1e-3").stderr


def test_an_empty_prompt_starts_a_text_where_it_can(run, tmp_path):
    with pytest.raises(UserError, match="give a prompt"):
        plait(run)
    spec = "d=32 vocab=44 pos=learned max_len=16 | attn[heads=2,pos=none] mlp"
    words = str(made_run(tmp_path / "words", spec, Words([f"w{i}" for i in range(38)])))
    found = document(words, "--no-stop")  # ids 40 to 43 of the model have no word
    assert found["tokens"] == [16]
    found = document(words, "w1 w2", "--no-stop")
    assert found["tokens"] == [15]


def test_words_are_spaced_behind_a_prompt(tmp_path):
    words = str(made_run(tmp_path / "words", "d=32 vocab=5 | attn[heads=2] mlp", Words(["a", "b", "c"])))
    for prompt in ("a b", "a b ", "a\n"):  # a space or a line end that is already there is not repeated
        found = document(words, prompt, "--tokens", "9", "--no-stop", "--greedy")
        text = prompt + found["completions"][0]
        assert "  " not in text
        assert "\n " not in text
        assert set(text.split()) <= {"a", "b", "c", "<unk>"}, text
        assert plait(words, prompt, "--tokens", "9", "--no-stop", "--greedy").stdout == text + "\n"


def test_a_prompt_beyond_the_learned_positions(tmp_path):
    spec = "d=32 vocab=256 pos=learned max_len=16 | attn[heads=2,pos=none] mlp"
    learned = str(made_run(tmp_path / "learned", spec, Bytes()))
    with pytest.raises(UserError, match=r"max_len=16 learned positions; shorten the prompt to 16 tokens or fewer\."):
        plait(learned, "x" * 40, "--tokens", "5")
    with pytest.raises(UserError, match=r"learned positions; ask for 7\."):
        plait(learned, "x" * 10, "--tokens", "9")


def test_the_end_of_text_ends_it(tmp_path):
    words = str(made_run(tmp_path / "words", "d=32 vocab=5 | attn[heads=2] mlp", Words(["a", "b", "c"])))
    found = document(words, "a", "--tokens", "500")
    assert found["ended"] == [True]
    assert found["tokens"][0] < 500
    assert "\n" not in found["completions"][0]


def test_refusals(run, tmp_path):
    with pytest.raises(UserError, match="not a run"):
        plait("nothing-there", "x")
    with pytest.raises(UserError, match="--device"):
        plait(run, "x", "--device", "warp")
    encoder = "d=32 vocab=256 kind=encoder | attn[heads=2,causal=false] mlp"
    with pytest.raises(UserError, match="kind=encoder"):
        plait(str(made_run(tmp_path / "encoder", encoder, Bytes())), "x")
