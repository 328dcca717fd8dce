"""`plait.bench.kernels` and `plait bench kernels` on a CPU."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from typer.testing import CliRunner

import plait
from plait.api.new import new_file
from plait.cli.main import app
from plait.device import kernel_bench
from plait.device.kernel_bench import CASES, largest_error
from plait.device.workload import bench_size


@pytest.mark.parametrize("name", CASES)
def test_ours_is_right_at_every_shape(name):
    error = largest_error(CASES[name], CASES[name].ours, 20, torch.device("cpu"), torch.float32)
    assert error < 1e-5


def test_timings_come_with_versions(monkeypatch):
    monkeypatch.setattr(kernel_bench, "CHECKED_LENGTH", 10)
    found = plait.bench.kernels("rwkv6", batch=1, seq_len=16, device="cpu", repeats=1)
    (row,) = found.rows()
    assert row["op"] == "rwkv6"
    assert row["right"]
    assert min(row["both_ms"], row["forward_ms"]) > 0
    assert row["ratio"] == 1
    assert found.versions["torch"] == torch.__version__


def test_what_is_wrong_is_not_timed(monkeypatch):
    case = CASES["rwkv6"]
    wrong = kernel_bench.KernelCase(
        case.name, case.shape, case.draw, lambda x: 1.01 * case.ours(x), case.definition, {}
    )
    monkeypatch.setitem(CASES, "rwkv6", wrong)
    monkeypatch.setattr(kernel_bench, "CHECKED_LENGTH", 10)
    given = ["bench", "kernels", "rwkv6", "--batch", "1", "--seq-len", "16", "--device", "cpu", "--json"]
    ran = CliRunner().invoke(app, given)
    assert ran.exit_code == 1
    (row,) = json.loads(ran.stdout)["kernels"]
    assert not row["right"]
    assert row["forward_ms"] is None


def test_a_peer_that_refuses_says_why(monkeypatch):
    monkeypatch.setattr(kernel_bench, "CHECKED_LENGTH", 10)

    def refuse(x):
        raise RuntimeError("not on this GPU\nat all")

    case = dataclasses.replace(CASES["rwkv6"], peers={"peer": lambda: refuse, "absent": _absent})
    monkeypatch.setattr(kernel_bench, "peers_of", lambda case, device: case.peers)
    ours, peer = kernel_bench.bench_case(
        case, batch=1, seq_len=16, device=torch.device("cpu"), dtype=torch.float32, repeats=1
    )
    assert ours.right
    assert (peer.right, peer.note, peer.both_ms) == (False, "not on this GPU", None)


def _absent():
    raise ImportError


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ops": ["glo"]}, "Did you mean 'gla'"),
        ({"dtype": "int8"}, "bfloat16"),
        ({"device": "nowhere"}, "not a device"),
    ],
)
def test_bad_input_is_one_message(options, message):
    with pytest.raises(plait.UserError, match=message):
        plait.bench.kernels(*options.pop("ops", []), **{"device": "cpu"} | options)


def test_a_cpu_is_not_asked_for_what_fills_a_gpu() -> None:
    found = plait.bench.kernels("gla", device="cpu", repeats=1)
    assert (found.batch, found.seq_len) == (1, 256)
    assert bench_size(torch.device("cuda"), None, 128) == (8, 128)


@pytest.mark.slow
def test_a_fleet_learns_what_the_plain_loop_learns():
    (row,) = plait.bench.fleet("attn", replicas=(2,), batch=2, tokens=8, steps=1, device="cpu").rows()
    assert row["loss_gap"] < 1e-4
    assert row["ratio"] == pytest.approx(row["plain_ms"] / row["replica_step_ms"])


def test_an_unknown_fleet_is_one_message():
    with pytest.raises(plait.UserError, match="Did you mean 'mamba'"):
        plait.bench.fleet("mambo", device="cpu")


@pytest.mark.parametrize("bench", ["train", "decode"])
def test_a_wrong_spec_is_one_message_before_the_first_is_timed(bench, monkeypatch):
    monkeypatch.setattr("plait.interop.train_bench.train_timings", None)
    monkeypatch.setattr("plait.device.model_bench.decode_speed", None)
    with pytest.raises(plait.UserError, match=r"unknown mixer 'glo'\. Did you mean 'gla'"):
        getattr(plait.bench, bench)("d=16 | gla mlp", "d=16 | glo mlp", device="cpu")


def test_your_own_mixer_is_timed(tmp_path):
    new_file("mixer", tmp_path / "own_mixer.py")
    given = ("bench", "train", "d=16 | own-mixer mlp", "--mixers", str(tmp_path / "own_mixer.py"))
    ran = CliRunner().invoke(
        app, [*given, "--vocab", "16", "--seq-len", "8", "--steps", "1", "--device", "cpu", "--json"]
    )
    (row,) = json.loads(ran.stdout)["models"]
    assert row["failure"] == ""
    assert row["tokens_per_second"] > 0
    decoded = plait.bench.decode(
        "d=16 | own-mixer mlp", positions=(4,), tokens=1, vocab=16, device="cpu", mixers=[tmp_path / "own_mixer.py"]
    )
    assert [row["generator"] for row in decoded.rows()] == ["plait"]
