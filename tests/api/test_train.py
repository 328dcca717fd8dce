"""`plait.train` and `plait.open_run` from Python, and the same from the command line."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

import plait
from plait.training.run import Run

SPEC = "d=16 | attn[heads=2] swiglu[inner=24]"
TIMED = {"seconds", "tokens_per_second", "mfu", "trained_now"}


def test_a_training_is_what_the_command_prints(plait_json):
    seen = []
    result = plait.train(
        SPEC,
        data="builtin:language",
        steps=5,
        batch=4,
        seq_len=24,
        recipe_values={"clip": 0.5},
        on_progress=seen.append,
    )
    assert result.trained_now
    assert seen[-1].step == 5
    assert result.validation_loss == result.loss > result.entropy
    assert [step for step, _ in result.curve] == [1, 2, 3, 4, 5]
    assert [step for step, _ in result.validation_curve] == [1, 2, 3, 4, 5]
    small = ("--data", "builtin:language", "--batch", "4", "--length", "24")
    known = plait_json("train", SPEC, *small, "--steps", "5", "--set", "clip=0.5")
    assert not known["trained_now"]
    assert known == {**result.as_dict(), "trained_now": False, "curve": [list(point) for point in result.curve]} | {
        "validation_curve": [list(point) for point in result.validation_curve]
    }
    other = plait_json("train", SPEC, *small, "--steps", "5", "--set", "clip=0.5", "--runs", "elsewhere",
                       "--store", "sqlite:///other.db")  # fmt: skip
    assert other.keys() == known.keys()
    assert {name for name in known if other[name] != known[name]} <= TIMED | {"folder"}


def test_a_run_is_opened_again(plait_json):
    result = plait.train(SPEC, data="builtin:language", steps=3, batch=2, seq_len=16)
    for run in (plait.open_run(), plait.open_run(result.folder), plait.open_run(result.key[:8]), result.open()):
        assert (run.key, run.spec, run.steps, run.finished) == (result.key, result.spec, 3, True)
    assert run.architecture.text == result.spec
    assert run.curve == result.curve
    ids = torch.tensor([[1, 2, 3]])
    logits = run.model()(ids)
    assert logits.shape == (1, 3, run.architecture.header.vocab)
    further = plait.train(from_run=result.run, steps=1, batch=2, seq_len=16)
    assert (further.spec, further.data) == (result.spec, result.data)
    assert further.key != result.key


def test_mistakes_are_told_in_one_message(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(plait.UserError, match="give one of --steps, --tokens, --time and --flops"):
        plait.train(SPEC, data="builtin:language")
    with pytest.raises(plait.UserError, match="give a corpus with --data"):
        plait.train(SPEC, steps=1)
    with pytest.raises(plait.UserError, match="cliip"):
        plait.train(SPEC, data="builtin:language", steps=1, recipe_values={"cliip": 1})
    with pytest.raises(plait.UserError, match="is not a run"):
        plait.open_run("nothing")


def test_a_training_begins_with_a_hugging_face_folder(plait_json, tmp_path):
    """Exported, and gone on with from there: the loss of the first step is that of the weights."""
    pytest.importorskip("transformers")
    common = {"data": "builtin:stdlib", "tokenizer": "bytes", "batch": 2, "seq_len": 16}
    first = plait.train("d=16 vocab=256 | attn[heads=2] swiglu", steps=3, **common)
    plait.export(first.folder, "native", tmp_path / "theirs")
    plait.export(first.folder, "hf", tmp_path / "ours")
    losses = {
        source: plait.train(data="builtin:stdlib", from_run=source, steps=1, lr=1e-20, batch=2, seq_len=16).loss
        for source in (first.folder, tmp_path / "theirs", tmp_path / "ours")
    }
    assert list(losses.values()) == pytest.approx([first.loss] * 3, abs=1e-5)
    with pytest.raises(plait.UserError, match="not a run"):
        plait.train(data="builtin:stdlib", from_run=tmp_path, steps=1)


def test_a_training_from_a_run_has_the_runs_tokenizer(plait_json, tmp_path):
    """On the run's text, the new run could not open it again ("has changed"); on another, the tokenizer was learned
    anew, and then refused as a different one."""
    for name, words in (("one", "some words that are here"), ("other", "other words that say more")):
        (tmp_path / f"{name}.txt").write_text(" ".join(words.split()[at * at % 5] for at in range(9000)))
    common = {"batch": 2, "seq_len": 16}
    first = plait.train("d=16 | attn[heads=2]", data=tmp_path / "one.txt", tokenizer="words:size=5", steps=2, **common)
    tokens = Run(Path(first.folder)).tokenizer().as_dict()
    for data in (None, tmp_path / "other.txt"):
        run = Run(Path(plait.train(from_run=first.folder, data=data, steps=1, **common).folder))
        assert run.corpus().tokenizer.as_dict() == run.tokenizer().as_dict() == tokens
    shutil.rmtree(first.folder)
    assert run.corpus().tokenizer.as_dict() == tokens  # its own copy
    (score,) = plait.evaluate(run.folder).evaluations
    assert score.data.name == str(tmp_path / "other.txt")


def test_a_sweep_averages_over_seeds(plait_json):
    common = {"data": "builtin:language", "steps": 3, "batch": 2, "seq_len": 16}
    spec = "d=16 | mamba[state=2]"
    found = plait.sweep(spec, lr=[1e-3, 1e-2], seeds=2, **common)
    losses = [[plait.train(spec, lr=lr, seed=seed, **common).loss for seed in (0, 1)] for lr in (1e-3, 1e-2)]
    assert [list(one.losses) for one in found.rates] == losses
    assert [one.mean for one in found.rates] == [sum(each) / 2 for each in losses]
    assert all(one.interval[0] < one.mean < one.interval[1] for one in found.rates)
    assert found.best == min(zip(losses, (1e-3, 1e-2), strict=True), key=lambda pair: sum(pair[0]))[1]
    typed = ("--data", "builtin:language", "--steps", "3", "--batch", "2", "--seq-len", "16")
    printed = plait_json("train", spec, *typed, "--lr", "1e-3,1e-2", "--seeds", "2")
    assert [one["losses"] for one in printed["rates"]] == losses
    assert printed["distinguishable"] == found.distinguishable


def test_a_rate_that_diverges_does_not_end_a_sweep(plait_json):
    common = {"data": "builtin:language", "steps": 3, "batch": 2, "seq_len": 16, "recipe_values": {"warmup": 0}}
    found = plait.sweep("d=16 | mamba[state=2]", lr=[1e-3, 1e30], **common)
    assert [one.diverged for one in found.rates] == [0, 1]
    assert (found.best, found.rates[1].mean) == (1e-3, None)
    with pytest.raises(plait.UserError, match="every training of the sweep diverged"):
        plait.sweep("d=16 | mamba[state=2]", lr=[1e30], **common)
