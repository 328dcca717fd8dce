"""`--from`: a training that begins with another run's weights."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from plait.core.errors import UserError
from plait.data import open_corpus
from plait.model.architecture import architecture
from plait.records import open_store
from plait.training.distributed import Processes
from plait.training.fit import Options, fit
from plait.training.resume import start_of
from plait.training.run import open_run
from plait.training.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parent))
from small_job import small_job

ALONE = Processes(0, 1, torch.device("cpu"))
LEARNED = "d=16 vocab={} kind=encoder pos=learned max_len={} | attn[heads=2,causal=false] mlp[inner=24]"


def trained(job, root):
    with open_store(f"sqlite:///{root}/plait.db") as store:
        return open_run(fit(job, ALONE, store, Options(root)).folder)


def encoder(length, max_len, **values):
    job = small_job("encoder", steps=4, seq_len=length, **values)
    return replace(job, arch=architecture(LEARNED.format(job.corpus.vocab + 1, max_len)))


def test_phase_two_begins_where_phase_one_ended(tmp_path):
    one = trained(encoder(12, 24), tmp_path)
    two = replace(encoder(24, 24, optimizer="nvlamb"), start=start_of(one))
    trainer = Trainer(two, 4, ALONE)
    for name, p in trainer.model.named_parameters():
        assert torch.equal(p.detach(), one.weights()[name]), name
    assert (trainer.step, trainer.optimizer.state_dict()["state"]) == (0, {})  # optimizer and schedule are new
    alone = encoder(24, 24, optimizer="nvlamb")
    assert two.key != alone.key
    assert two.config()["from"] == {"key": one.about["key"], "steps": 4}
    assert "from" not in alone.config()
    run = trained(two, tmp_path)
    assert run.name != one.name
    assert run.config["from"]["key"] == one.about["key"]


def test_a_text_that_was_moved_or_changed_is_said(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = Path("mine.txt")
    text.write_text("some words to learn\n" * 50)
    arch = architecture("d=16 vocab=256 | attn[heads=2]")
    job = replace(small_job("attn", steps=1, seq_len=12, batch=2), arch=arch, corpus=open_corpus("mine.txt"))
    run = trained(job, tmp_path / "runs")
    assert run.corpus().as_dict() == job.corpus.as_dict()
    text.write_text("other words to learn\n" * 50)
    with pytest.raises(UserError, match=rf"^mine\.txt has changed since {run.name} was trained on it; .* --data\.$"):
        run.corpus()
    text.unlink()
    with pytest.raises(UserError, match=rf"^mine\.txt, on which {run.name} was trained, is not there .* --data\.$"):
        run.corpus()


def test_new_positions_are_added_and_short_ones_refused(tmp_path):
    one = trained(encoder(12, 12), tmp_path)
    longer = Trainer(replace(encoder(24, 24), start=start_of(one)), 4, ALONE)
    table, fresh = longer.model.backbone.position.weight.detach(), Trainer(encoder(24, 24), 4, ALONE).model
    assert torch.equal(table[:12], one.weights()["backbone.position.weight"])
    assert torch.equal(table[12:], fresh.backbone.position.weight.detach()[12:])
    with pytest.raises(UserError, match=r"24 tokens.*max_len=12.*max_len=24 in the spec"):
        encoder(24, 12)


def test_what_cannot_be_gone_on_from_is_said(tmp_path):
    one = trained(small_job(steps=2), tmp_path)
    with pytest.raises(UserError, match="the spec is not that of"):
        Trainer(replace(small_job("tied", steps=2), start=start_of(one)), 2, ALONE)
    (one.folder / "weights.safetensors").unlink()
    with pytest.raises(UserError, match="has not finished"):
        start_of(one)
