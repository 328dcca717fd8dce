"""Compiled training: one graph per pattern of blocks, without breaks, the same numbers; and when it is worth it."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from plait.mixers.table import MIXERS
from plait.model import build
from plait.model.architecture import architecture
from plait.model.compiled_blocks import compile_blocks, repeated_pattern
from plait.training import speed
from plait.training.distributed import Processes
from plait.training.speed import EAGER_STEPS, CompileDecision, compile_seconds, repays
from plait.training.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parent))
from small_job import small_job

ALONE = Processes(0, 1, torch.device("cpu"))
SMALL = {"attn": "heads=2", "fox": "heads=2", "hgrn2": "head_dim=8", "deltanet": "head_dim=8", "kda": "head_dim=8",
         "gated-deltanet": "head_dim=8", "rwkv6": "head_dim=8", "rwkv7": "head_dim=8", "mamba2": "state=4,head_dim=8",
         "deltaproduct": "head_dim=8", "mamba3": "state=4,head_dim=8", "xl-attn": "heads=2", "mla": "heads=2",
         "retnet": "heads=2"}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in sorted(MIXERS.names()) if not MIXERS.load(name).reads])
def test_every_mixer_trains_compiled_as_one_graph_for_all_its_blocks(name: str) -> None:
    options = f"[{SMALL[name]}]" if name in SMALL else ""
    width = 128 if name in ("parallel", "sparse-attn") else 16  # as wide as their heads are by default
    spec = f"d={width} vocab=11 | ({name}{options} swiglu[inner=16])x2"
    given, wanted = build(spec), build(spec)
    tokens = torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(0))
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compile_blocks(given.backbone, 20, torch.float32, backend="aot_eager")
    for model in (given, wanted):
        model.loss(tokens, tokens.roll(1, 1)).backward()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    for (which, p), q in zip(given.named_parameters(), wanted.parameters(), strict=True):
        assert (p.grad is None) == (q.grad is None), which
        if p.grad is not None and q.grad is not None:
            torch.testing.assert_close(p.grad, q.grad, atol=1e-6, rtol=1e-4, msg=which)


@pytest.mark.parametrize(
    ("spec", "period"),
    [
        ("(attn[heads=2] mlp)x12", 2),
        ("(mamba)x5", 1),
        ("attn[heads=2] mlp", 1),
        ("(attn[heads=2] mlp gla[heads=2] mlp)x3", 4),
        ("(attn[heads=2] mlp)x3 mlp", 1),
    ],
)
def test_the_pattern_that_repeats_is_found(spec: str, period: int) -> None:
    assert repeated_pattern(architecture(f"d=16 vocab=5 | {spec}").layers) == period


def test_compiled_steps_are_those_of_the_eager_trainer() -> None:
    job = small_job("attn", dropout=0.0)
    torch._dynamo.reset()
    plain, compiled = Trainer(job, 12, ALONE), Trainer(job, 12, ALONE)
    compile_blocks(compiled.model.backbone, 24, torch.float32, backend="aot_eager")
    for _ in range(3):
        ours, theirs = compiled.advance(), plain.advance()
        assert ours.loss == pytest.approx(theirs.loss, rel=1e-5)
    assert compiled.validation_loss() == pytest.approx(plain.validation_loss(), rel=1e-4)


def test_compiling_is_for_runs_that_repay_it() -> None:
    arch = architecture("d=16 vocab=5 | (attn[heads=2] mlp)x12")
    assert compile_seconds(arch) == compile_seconds(architecture("d=16 vocab=5 | (attn[heads=2] mlp)x24"))
    assert not repays(0.2, 100, arch)
    assert repays(0.2, 10_000, arch)


class Decisions:
    """A run whose description is kept between two of its sessions."""

    def __init__(self, seconds: float | None) -> None:
        self.about: dict[str, object] = {}
        self.job = SimpleNamespace(budget=SimpleNamespace(seconds=seconds), arch=architecture("d=16 | attn mlp"))
        self.dist = SimpleNamespace(first=True, broadcast=lambda mine: mine, device=torch.device("cuda"))

    def write_about(self, about: dict[str, object]) -> None:
        self.about = about

    def decide(self, left: float = math.inf) -> CompileDecision:
        return CompileDecision(self.job, self, self.dist, left)  # type: ignore[arg-type]


@pytest.fixture
def compiler(monkeypatch):
    monkeypatch.setattr(speed, "compiler_on", lambda device: True)


@pytest.mark.usefixtures("compiler")
@pytest.mark.parametrize(("steps_left", "worth"), [(10, False), (100_000, True)])
def test_a_run_times_a_few_steps_and_decides_for_its_later_sessions_too(steps_left, worth):
    run = Decisions(None)
    deciding = run.decide()
    assert deciding.pending
    compiled = [deciding.after_step(0.05, steps_left) for _ in range(EAGER_STEPS) if deciding.pending]
    assert compiled == [False] * (EAGER_STEPS - 1) + [worth]
    assert not deciding.pending
    assert run.decide().at_start is worth


@pytest.mark.usefixtures("compiler")
def test_with_a_time_budget_it_is_decided_at_once():
    assert Decisions(10.0).decide(left=10.0).at_start is False
    assert Decisions(1e5).decide(left=1e5).at_start is True


def test_nothing_is_compiled_where_the_compiler_does_not_work(monkeypatch):
    monkeypatch.setattr(speed, "compiler_on", lambda device: False)
    assert Decisions(None).decide().at_start is False
    assert Decisions(1e5).decide(left=1e5).at_start is False
