"""PAR BERT (arXiv:2009.04534, §3.2) learns by masked-language modelling, with the paper's recipe scaled down."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from plait.data import open_corpus
from plait.model.architecture import architecture
from plait.model.language_model import Encoder
from plait.papers.par.presets import ROWS
from plait.papers.recipes import recipe
from plait.records import open_store
from plait.training.distributed import Processes
from plait.training.fit import Options, fit
from plait.training.recipe import Budget, Job, fitted
from plait.training.run import open_run

#: The preset, narrow: 12 heads of 2, and BERT's inner width.
NARROW = "d=24 max_len=64 vocab=257 | preset:par-bert-base"


def test_the_pattern_is_the_papers() -> None:
    layers = architecture("par-bert-base").layers
    assert "".join("s" if options.kind == "sequence" else "f" for options in layers) == "sff" * 5 + "f" * 9
    assert ROWS["par-bert-base"].latency_ms / ROWS["bert-base"].latency_ms == pytest.approx(0.663, abs=5e-4)
    assert len(layers) == len(architecture("bert-base").layers) == 24


def test_it_learns_on_real_text(tmp_path: Path) -> None:
    corpus = open_corpus("builtin:stdlib")
    published = recipe("bert-phase1").recipe
    assert (published.batch, published.seq_len, published.optimizer) == (65536, 128, "nvlamb")
    # The published rate is for 7038 steps of batches 8192 times as large: 20 steps would move a tensor by a tenth.
    small = published.with_values({"batch": 8, "seq_len": 32, "lr": 0.05, "warmup": 0.1})
    job = Job(fitted(NARROW, corpus), corpus, small, Budget(steps=20), validation_tokens=2048)
    dist = Processes(0, 1, torch.device("cpu"))
    with open_store(f"sqlite:///{tmp_path}/runs.db") as store:
        result = fit(job, dist, store, Options(tmp_path / "runs"))
    assert (result.steps, result.tokens, result.skipped) == (20, 20 * 8 * 32, 0)
    # An untrained model is at ln 257 = 5.55.
    assert result.loss < math.log(257) - 0.2
    model = open_run(result.folder).model()
    assert isinstance(model, Encoder)
    assert model(torch.full((1, 8), 256)).shape == (1, 8, 257)  # 256 is the mask
