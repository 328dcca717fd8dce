"""Two processes (gloo, on the CPU) against one: the same losses, checkpoints that either can go on from."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from forked_workers import launch

from plait.core.errors import UserError
from plait.training.distributed import _device_of_process, processes

sys.path.insert(0, str(Path(__file__).parent))
from process_cases import Case, train_cases, train_together

KINDS = {"tied": {}, "xl": {"gradient_accumulation": 2}, "encoder": {}, "pairs": {"gradient_accumulation": 2}}
# Up to which step a run is trained by one process, by two with FSDP, by two with DDP, and by one again.
CHANGING = {"one, fsdp, ddp, one": (2, 4, 6, 8), "fsdp, one": (0, 3, 0, 8), "one, ddp": (3, 0, 8, 0)}


def changing(stage: int) -> list[Case]:
    """The cases of runs that change their processes, at one of the four stages."""
    way = ("ddp", "fsdp", "ddp", "ddp")[stage]
    return [[name, "xl", way, upto[stage], {}] for name, upto in CHANGING.items() if upto[stage]]


@pytest.fixture(scope="module")
def launched(tmp_path_factory):
    folder = tmp_path_factory.mktemp("processes")
    alone = [[f"{kind}-one", kind, "ddp", 8, values] for kind, values in KINDS.items()]
    both = [[f"{kind}-{way}", kind, way, 8, values] for kind, values in KINDS.items() for way in ("ddp", "fsdp")]
    with processes("cpu") as single:
        one = train_cases(single, [*alone, ["straight", "xl", "ddp", 8, {}], *changing(0)], folder)
        two = launch(2, folder, train_together, [*both, *changing(1), *changing(2)])
        last = train_cases(single, changing(3), folder)
    legs = {name: [stage[name] for stage in (one, two, last) if name in stage] for name in CHANGING}
    changed = {
        name: {"losses": [loss for leg in found for loss in leg["losses"]], "validation": found[-1]["validation"]}
        for name, found in legs.items()
    }
    return {**two, **one, **changed}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["ddp", "fsdp"])
def test_two_processes_train_as_one(kind, way, launched):
    one, two = launched[f"{kind}-one"], launched[f"{kind}-{way}"]
    assert two["losses"] == pytest.approx(one["losses"], abs=1e-5)
    # Adam hardly minds gradients that are all twice as large; their norm tells.
    assert two["norms"] == pytest.approx(one["norms"], rel=1e-3)
    assert two["validation"] == pytest.approx(one["validation"], abs=1e-5)


@pytest.mark.parametrize("name", CHANGING)
def test_a_run_goes_on_with_another_number_of_processes(name, launched):
    assert launched[name]["losses"] == pytest.approx(launched["straight"]["losses"], abs=1e-5)
    assert launched[name]["validation"] == pytest.approx(launched["straight"]["validation"], abs=1e-5)


@pytest.mark.parametrize("device", ["tpu", "cpu:1", "cuda:x", "cuda:-1", "gpu", ""])
def test_a_device_that_is_none_is_refused(device):
    """Anything but `cuda` once meant the processor, so a training for a GPU could run for hours on the wrong one."""
    with pytest.raises(UserError, match="models are trained on cpu, mps"), processes(device):
        pass


def test_one_gpu_of_several_can_be_named(monkeypatch):
    chosen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.setattr(torch.cuda, "set_device", chosen.append)
    with processes("cuda") as first, processes("cuda:3") as last:
        assert (first.device, last.device) == (torch.device("cuda:0"), torch.device("cuda:3"))
    assert chosen == [0, 3]
    with pytest.raises(UserError, match="has 4 CUDA devices"), processes("cuda:4"):
        pass
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 processes cannot share one GPU"), processes("cuda:1"):
        pass


@pytest.mark.slow
def test_losing_a_process_ends_clearly_and_resumes(tmp_path):
    def command(steps: int) -> list[str]:
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "plait",
                "train", "d=16 | attn[heads=2] swiglu[inner=24]", "--data", "builtin:language", "--batch", "4",
                "--seq-len", "24", "--steps", str(steps), "--save-steps", "5", "--json"]  # fmt: skip

    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    child = subprocess.Popen(
        command(3000), cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until = time.monotonic() + 600
    while not list(tmp_path.glob("runs/train-*/step-*")) and time.monotonic() < until:
        time.sleep(0.1)
    victims = _ranks(child.pid)
    assert len(victims) == 2
    os.kill(victims[1], signal.SIGKILL)
    _, errors = child.communicate(timeout=600)
    assert child.returncode != 0
    assert "the same command resumes" in errors, errors
    (folder,) = tmp_path.glob("runs/train-*")
    reached = max(int(path.name.removeprefix("step-")) for path in folder.glob("step-*"))
    about = json.loads((folder / "run.json").read_text())
    assert 0 < reached < about["steps"] == 3000
    # Gone on with by one process, from where the two were.
    again = subprocess.Popen(
        [sys.executable, "-m", "plait", *command(3000)[7:]], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    while not list(folder.glob("step-*")) or _newest(folder) <= reached:
        assert again.poll() is None, again.communicate()[1]
        time.sleep(0.05)
    again.send_signal(signal.SIGINT)
    _, errors = again.communicate(timeout=600)
    assert again.returncode == 130
    assert "is saved at step" in errors


def _newest(folder: Path) -> int:
    return max((int(path.name.removeprefix("step-")) for path in folder.glob("step-*")), default=0)


def _ranks(launcher: int) -> list[int]:
    children = Path(f"/proc/{launcher}/task/{launcher}/children").read_text().split()
    return [int(child) for child in children]


def test_apples_gpu_is_taken_where_torch_has_it(monkeypatch):
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with pytest.raises(UserError, match="no Apple GPU"):
        _device_of_process("mps", 1)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    assert _device_of_process("mps", 1) == torch.device("mps")
    with pytest.raises(UserError, match="2 processes cannot share one GPU"):
        _device_of_process("mps", 2)
