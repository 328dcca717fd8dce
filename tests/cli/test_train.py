"""`plait train` as a user runs it."""

from __future__ import annotations

import io
import json
import re
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console
from short_validation import TOKENS

from plait.cli import output, train
from plait.cli.main import main
from plait.training.fit import Progress

SMALL = ["d=16 | attn[heads=2] swiglu[inner=24]", "--data", "builtin:language", "--batch", "4", "--seq-len", "24"]


def test_json_has_what_others_rely_on(plait, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = plait("train", *SMALL, "--steps", "5", "--json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {"run", "loss", "entropy", "perplexity", "tokens", "tokens_per_second"} <= found.keys()
    assert found["tokens"] == 5 * 4 * 24
    assert found["loss"] > found["entropy"]
    again = plait("train", *SMALL, "--steps", "5")
    assert "already trained" in again.stdout
    assert "MFU" not in again.stdout  # unknown here
    at = found["folder"]
    assert again.stdout.endswith(f"trained weights: {at}\nnext: plait eval {at}; plait export {at} --to hf\n")


def test_recipe_keys_and_published_recipes(plait, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = plait("train", *SMALL, "--steps", "2", "--recipe", "fox-125m", "--set", "clip=0.5", "--json")
    assert done.returncode == 0, done.stderr
    (about,) = tmp_path.glob("runs/train-*/run.json")
    recipe = json.loads(about.read_text())["config"]["recipe"]
    assert (recipe["lr"], recipe["warmup"], recipe["clip"], recipe["batch"]) == (2e-3, 512, 0.5, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*SMALL], "give one of --steps, --tokens, --time and --flops; given: none"),
        ([*SMALL, "--steps", "5", "--time", "1m"], "given: --steps, --time"),
        ([*SMALL, "--steps", "0"], "must be positive"),
        ([*SMALL, "--steps", "5", "--set", "cliip=1"], "Did you mean 'clip'"),
        ([*SMALL, "--steps", "5", "--set", "clip=much"], "clip takes a number"),
        ([*SMALL, "--steps", "5", "--recipe", "fox-125"], "Did you mean 'fox-125m'"),
        ([*SMALL, "--steps", "5", "--lr", ","], "--lr ,: give a number, or several separated by commas"),
        ([*SMALL, "--steps", "5", "--precision", "fp8"], "must be one of fp32, bf16"),
        ([*SMALL, "--steps", "5", "--sharding", "zero"], "must be one of ddp, fsdp"),
        (["d=16 vocab=8 | attn[heads=2]", *SMALL[1:], "--steps", "5"], "has vocab=8"),
        (["d=16 | atn", *SMALL[1:], "--steps", "5"], "Did you mean 'attn'"),
        ([SMALL[0], "--data", "builtin:languag", "--steps", "5"], "builtin:language"),
        ([SMALL[0], "--data", "no/such/folder", "--steps", "5"], "no/such/folder"),
        ([*SMALL, "--steps", "5", "--set", "clip"], "--set clip: write key=value. Keys:"),
        ([SMALL[0], "--data", "short.txt", "--batch", "4", "--seq-len", "24", "--steps", "5"], "smaller --batch or"),
        ([SMALL[0], "--data", "short.txt", "--batch", "1", "--seq-len", "8", "--steps", "5"], "smaller --seq-len"),
        (
            [*SMALL, "--steps", "5", "--validation-tokens", "0"],
            "--validation-tokens': must be greater than or equal to 1",
        ),
        (["d=16 kind=autoencoder | attn[heads=2]", *SMALL[1:], "--steps", "5"], "is for probes"),
    ],
)
def test_mistakes_are_one_message_and_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    """In this process: a program of its own each would take most of a minute."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "short.txt").write_text("too short for a batch")
    monkeypatch.setattr(sys, "argv", ["plait", "train", *arguments])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 2
    assert message in capsys.readouterr().err
    assert not list(tmp_path.glob("runs/train-*"))


def test_former_names_of_option_and_keys_are_taken(plait, tmp_path, monkeypatch):
    """`--length`, `--set length=` and `--set floor=`: the same training as `seq_len` and `min_lr_ratio` name."""
    monkeypatch.chdir(tmp_path)
    spec = ["train", *SMALL[:-2], "--steps", "2"]
    first = plait(*spec, "--seq-len", "24", "--set", "min_lr_ratio=0.1", "--json")
    assert first.returncode == 0, first.stderr
    for former in (["--length", "24"], ["--set", "length=24"]):
        again = plait(*spec, *former, "--set", "floor=0.1", "--json")
        assert again.returncode == 0, again.stderr
        assert json.loads(again.stdout)["run"] == json.loads(first.stdout)["run"]
    assert "--length" not in plait("train", "--help").stdout


def test_from_on_the_command_line(plait, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["--steps", "2", "--batch", "4", "--seq-len", "24", "--json"]
    first = plait("train", "d=16 | attn[heads=2] mlp[inner=24]", "--data", "builtin:language", *small)
    assert first.returncode == 0, first.stderr
    name = json.loads(first.stdout)["run"]
    done = plait("train", "--from", name, "--lr", "1e-3", *small)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["run"] != name
    assert found["spec"] == json.loads(first.stdout)["spec"]
    other = plait("train", "--from", name, "--data", "builtin:stdlib", *small)
    assert other.returncode == 2
    assert f"builtin:stdlib does not fit the tokenizer of {name}: the character" in other.stderr
    again = plait("train", "--from", name, "--data", "builtin:stdlib", "--tokenizer", "bytes", *small)
    assert again.returncode == 2
    assert "is tokenised differently" in again.stderr
    assert plait("train", *small).returncode == 2


def test_scaling_recipe_on_the_command_line(plait, tmp_path, monkeypatch):
    """Table C.2's 8M row: its rate, and the batch of small models (262k tokens) unless another is asked for."""
    monkeypatch.chdir(tmp_path)
    spec = ["d=16 | attn[heads=2] mlp[inner=24]", "--data", "builtin:language", "--recipe", "mad-scaling"]
    small = ["--seq-len", "32", "--batch", "4", "--json"]
    done = plait("train", *spec, *small, "--flops", "1e8")
    assert done.returncode == 0, done.stderr
    (about,) = tmp_path.glob("runs/train-*/run.json")
    recipe = json.loads(about.read_text())["config"]["recipe"]
    assert (recipe["lr"], recipe["batch"], recipe["min_lr_ratio"]) == (9.77e-4, 4, 0.1)
    refused = plait("train", *spec, *small, "--steps", "2")
    assert refused.returncode == 2
    assert "--flops" in refused.stderr


def test_a_narrow_terminal_shows_how_far_it_is_and_how_long_it_takes(monkeypatch):
    written = io.StringIO()
    terminal = Console(file=written, width=80, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(train, "console", lambda stderr=False: terminal)
    run = SimpleNamespace(name="train-0123456789")
    with train.Display("my.txt", quiet=False) as display:
        display.update(Progress(run, 400, 168, loss=2.25, validation=2.5, tokens_per_second=35_200))
    assert re.search(r"train-0123456789 .* 42% 0:00:\d\d left \S+ loss 2\.250 .*…", written.getvalue())


def test_the_last_validation_is_a_part_of_what_is_shown(monkeypatch):
    """One step was 100 %, and then nothing moved for ten minutes."""
    written = io.StringIO()
    terminal = Console(file=written, width=120, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(train, "console", lambda stderr=False: terminal)
    run = SimpleNamespace(name="train-0123456789")
    work = {"validation_tokens": 131_072, "validation_steps": 3.0}
    with train.Display("my.txt", quiet=False) as display:
        display.update(Progress(run, 1, 1, loss=2.25, **work))
        display.update(Progress(run, 1, 1, loss=2.25, validated=0.5, **work))
    assert re.search(r"train-0123456789 .* 62% .* validating on 131,072 tokens", written.getvalue())


def test_before_the_first_step_it_says_what_it_does(monkeypatch, tmp_path):
    from plait import train as train_model

    """It said "opening" until the first step had ended, also while it compiled."""
    written = io.StringIO()
    terminal = Console(file=written, width=120, force_terminal=True, color_system=None, highlight=False)
    monkeypatch.setattr(train, "console", lambda stderr=False: terminal)
    monkeypatch.chdir(tmp_path)
    with train.Display("builtin:language", quiet=False) as display:

        def begin(doing):
            display.begin(doing)
            display._bar.refresh()

        small = {"data": "builtin:language", "batch": 2, "seq_len": 16, "steps": 1}
        train_model("d=16 | gla[heads=2] swiglu", **small, on_progress=display.update, on_start=begin)
    shown = written.getvalue()
    places = [shown.index(doing) for doing in ("opening builtin:language", "building the model", "the first step")]
    assert places == sorted(places)


def test_in_a_pipe_the_last_validation_has_lines(monkeypatch):
    written = io.StringIO()
    monkeypatch.setattr(sys, "stderr", written)
    monkeypatch.setattr(output, "FIRST_LINE", 0.0)
    run = SimpleNamespace(name="train-0123456789")
    with train.Display("my.txt", quiet=True) as display:
        display.update(Progress(run, 1, 1, loss=2.25, validated=0.5, validation_tokens=64, validation_steps=3.0))
    assert written.getvalue().startswith("plait: train-0123456789 validation, 62 % after")


def test_the_validation_text_can_be_shorter(plait, tmp_path):
    runs = set()
    for tokens in ([], ["--validation-tokens", "96"]):
        done = plait("train", *SMALL, "--steps", "1", *tokens, "--json")
        assert done.returncode == 0, done.stderr
        runs.add(json.loads(done.stdout)["run"])
    abouts = [json.loads((tmp_path / "runs" / run / "run.json").read_text()) for run in runs]
    assert {about["config"]["validation_tokens"] for about in abouts} == {96, TOKENS}


def test_a_sample_of_a_corpus_has_the_breaks_of_the_text_alone(plait, tmp_path):
    (tmp_path / "long.txt").write_text("no break in this line at all, " * 400)
    ran = plait("data", "show", "long.txt", "--sample", "300")
    assert ran.returncode == 0, ran.stderr
    assert max(map(len, ran.stdout.splitlines())) >= 290
