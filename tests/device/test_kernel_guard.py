"""The kernels' guard, on a CPU: what it finds there it finds on a GPU."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from typer.testing import CliRunner

import plait
from plait.cli.main import app
from plait.device.kernel_guard import OPS, case_of, guard, settings, unwritten_memory_is_nan

CPU = torch.device("cpu")


def small(name="rwkv6"):
    return case_of(name)


@pytest.mark.parametrize("decays", ["weak", "extreme"])
def test_a_right_op_passes(decays):
    found = guard(small(), torch.float32, 5, decays, CPU)
    assert found.right
    assert found.same
    assert 0 < found.error < 1e-5


def test_a_wrong_gradient_is_seen():
    """The output is right; only what flows back to k is not."""

    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return 1.001 * grad

    case = small()
    wrong = dataclasses.replace(case, ours=lambda x: case.ours(x | {"k": Wrong.apply(x["k"])}))
    found = guard(wrong, torch.float32, 5, "mixed", CPU)
    assert not found.right
    assert found.worst == "gradient of k"


def test_memory_that_nobody_wrote_is_seen():
    case = small()
    wrong = dataclasses.replace(case, ours=lambda x: case.ours(x) + 0 * x["v"].new_empty(x["v"].shape))
    found = guard(wrong, torch.float32, 5, "mixed", CPU)
    assert not found.right
    assert found.error == math.inf


def test_results_that_change_are_seen():
    case, noise = small(), torch.Generator().manual_seed(0)
    wrong = dataclasses.replace(case, ours=lambda x: case.ours(x) * (1 + 1e-6 * torch.rand(1, generator=noise)))
    found = guard(wrong, torch.float32, 5, "mixed", CPU)
    assert not found.same
    assert not found.right


def test_settings_reach_long_lengths_and_every_decay():
    wanted = settings(small())
    assert {decays for _, _, decays in wanted} == {"weak", "strong", "mixed", "extreme"}
    assert {1, 16384} <= {tokens for _, tokens, _ in wanted}
    assert {dtype for dtype, *_ in wanted} == {torch.bfloat16, torch.float32}
    assert {decays for _, _, decays in settings(case_of("deltanet"))} == {""}


def test_memory_is_as_before_afterwards():
    before = torch.empty, torch.Tensor.new_empty
    with unwritten_memory_is_nan():
        assert torch.empty(3).isnan().all()
    assert (torch.empty, torch.Tensor.new_empty) == before


def test_without_a_gpu_it_is_one_message(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ran = CliRunner().invoke(app, ["check", "gla", "--device", "cuda"])
    assert isinstance(ran.exception, plait.UserError) or ran.exit_code == 2
    with pytest.raises(plait.UserError, match="no CUDA device"):
        plait.check("gla", device="cuda")


def test_a_mixer_without_kernels_says_which_have_some():
    with pytest.raises(plait.UserError, match="no kernels"):
        case_of("hyena")
    assert {"gla", "mamba2", "kda"} <= set(OPS)
