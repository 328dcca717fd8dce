"""Tensor parallelism in two and four processes (gloo, on the CPU) against one process: the same losses, gradients and
weights, checkpoints that either resumes, and what cannot be shared is said."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from forked_workers import launch

import plait
from plait.core.errors import UserError
from plait.mixers.mixer import Cut
from plait.training.distributed import Processes, processes
from plait.training.run import open_run
from plait.training.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parent))
from process_cases import train_cases, train_together
from small_job import small_job

HERE = Path(__file__).parent
KINDS = {
    "attn": {}, "tied": {"dropout": 0.1}, "fox-pro": {"clip": 0.1}, "shared-norm": {"gradient_accumulation": 2},
    "canon": {}, "sinks": {}, "xl": {}, "encoder": {}, "moe-swiglu": {},
}  # fmt: skip
#: Up to which step a run is trained by one process, by two, and by one again.
CHANGING = {"one, two, one": (3, 6, 8), "two, one": (0, 4, 8), "one, two": (4, 8, 0)}


def changing(stage: int) -> list:
    return [[name, "fox-pro", "ddp", upto[stage], {}] for name, upto in CHANGING.items() if upto[stage]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Every case by one process, by two that share the layers, and (`4-`) by two pairs of such."""
    folder, shared = tmp_path_factory.mktemp("tensor"), partial(train_together, tensor=2)
    cases = [[kind, kind, "ddp", 8, values] for kind, values in KINDS.items()]
    straight = ["straight", "fox-pro", "ddp", 8, {}]
    with processes("cpu") as single:
        one = train_cases(single, [*cases, straight], folder / "one", gradients=True)
        one_first = train_cases(single, changing(0), folder)
        two = launch(2, folder, shared, [*cases, *changing(1)])
        last = train_cases(single, changing(2), folder)
    four = launch(4, folder, shared, [[f"4-{kind}", kind, "ddp", 8, KINDS[kind]] for kind in ("fox-pro", "xl")])
    changed = {
        name: [loss for stage in (one_first, two, last) if name in stage for loss in stage[name]["losses"]]
        for name in CHANGING
    }
    return one, two, four, changed


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_that_share_layers_train_as_one(kind, trained):
    one, two = trained[0][kind], trained[1][kind]
    _same(one, two)


@pytest.mark.parametrize("kind", ["fox-pro", "xl"])
def test_layers_and_batch_are_shared_at_once(kind, trained):
    _same(trained[0][kind], trained[2][f"4-{kind}"])


def _same(one: dict, other: dict) -> None:
    assert other["losses"] == pytest.approx(one["losses"], abs=1e-5)
    assert other["norms"] == pytest.approx(one["norms"], rel=1e-4)
    assert other["validation"] == pytest.approx(one["validation"], abs=1e-5)
    assert other["gradients"].keys() == one["gradients"].keys()
    for name, gradient in one["gradients"].items():
        torch.testing.assert_close(
            torch.tensor(other["gradients"][name]), torch.tensor(gradient), atol=1e-5, rtol=1e-4, msg=name
        )


@pytest.mark.parametrize("name", CHANGING)
def test_a_run_resumes_with_and_without_it(name, trained):
    one, _, _, changed = trained
    assert changed[name] == pytest.approx(one["straight"]["losses"], abs=1e-5)


def test_parts_joined_are_the_whole():
    whole = torch.arange(24.0).reshape(12, 2)
    for cut, tensor in ((Cut(0, (6, 4, 2)), whole), (Cut(1, (8, 4)), whole.mT)):
        parts = [cut.part(tensor, rank, 2) for rank in range(2)]
        assert parts[0].shape == parts[1].shape
        assert torch.equal(cut.join(parts), tensor)
    # Of queries, keys and values in one matrix, each process has some of each.
    assert Cut(0, (6, 4, 2)).part(whole, 1, 2)[:, 0].tolist() == [6, 8, 10, 16, 18, 22]


SPEC = "d=16 | attn[heads=2] mlp[inner=24] moving-average swiglu[inner=24]"
MIXER = HERE.parents[1] / "examples" / "moving_average.py"
SIZES = {"data": "builtin:language", "batch": 4, "seq_len": 24, "steps": 6}


def start(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """The command itself in two processes, with a mixer of the user's that every process computes."""
    sizes = [text for key, value in SIZES.items() for text in (f"--{key.replace('_', '-')}", str(value))]
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "plait"]
    command = [*launcher, "train", SPEC, "--mixers", str(MIXER), *sizes, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, cwd=folder)


def test_the_command_trains_as_one_process_and_its_run_opens_without_it(tmp_path):
    done = start(tmp_path, "--tensor-parallel", "2")
    assert done.returncode == 0, done.stderr[-2000:]
    assert "attn, mlp, swiglu shared by 2 processes; moving-average in each of them" in done.stderr
    (found,) = tmp_path.glob("runs/train-*")
    alone = plait.train(SPEC, mixers=[MIXER], runs=tmp_path / "alone", store=f"sqlite:///{tmp_path}/alone.db", **SIZES)
    run = open_run(found)
    assert run.about["key"] == alone.key
    assert run.result["loss"] == pytest.approx(alone.loss, abs=1e-5)
    trained = dict(alone.open().model().named_parameters())
    for name, parameter in run.model().named_parameters():  # of a model that knows nothing of parts
        torch.testing.assert_close(parameter, trained[name], atol=1e-4, rtol=1e-3, msg=name)


@pytest.mark.parametrize(
    ("recipe", "spec", "message"),
    [
        ({"optimizer": "muon"}, "attn", "optimizer=muon needs whole matrices"),
        ({"attn_dropout": 0.1}, "attn", "attn_dropout=0.1"),
        ({}, "mamba", r"no mixer of this model can be shared by 2 processes \(mamba\)"),
    ],
)
def test_what_does_not_go_together_is_one_message(recipe, spec, message):
    among = Processes(0, 2, torch.device("cpu"), tensor=2)
    with pytest.raises(UserError, match=message):
        Trainer(small_job(spec, **recipe), 8, among)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tensor": 3}, "2 processes do not divide into groups of 3"),
        ({"tensor": 2, "sharding": "fsdp"}, "works only with --sharding ddp"),
    ],
)
def test_processes_that_do_not_divide_are_refused(options, message, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match=message), processes("cpu", **options):
        pass


def test_without_torchrun_it_says_how_to_start():
    with pytest.raises(UserError, match="torchrun --nproc-per-node 2"), processes("cpu", tensor=2):
        pass
