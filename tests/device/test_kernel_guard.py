"""The kernels' guard, on a CPU: what it finds there it finds on a GPU."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch
from typer.testing import CliRunner

import plait
from plait.cli.main import app
from plait.device.kernel_bench import CASES
from plait.device.kernel_guard import OPS, Setting, case_of, guard, settings, unwritten_memory_is_nan

CPU = torch.device("cpu")


def small(name="rwkv6"):
    return case_of(name)


@pytest.mark.parametrize("decays", ["weak", "extreme"])
def test_a_right_op_passes(decays):
    found = guard(small(), Setting(torch.float32, 5, decays), CPU)
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
    found = guard(wrong, Setting(torch.float32, 5, "mixed"), CPU)
    assert not found.right
    assert found.worst == "gradient of k"


def test_memory_that_nobody_wrote_is_seen():
    case = small()
    wrong = dataclasses.replace(case, ours=lambda x: case.ours(x) + 0 * x["v"].new_empty(x["v"].shape))
    found = guard(wrong, Setting(torch.float32, 5, "mixed"), CPU)
    assert not found.right
    assert found.error == math.inf


def test_results_that_change_are_seen():
    case, noise = small(), torch.Generator().manual_seed(0)
    wrong = dataclasses.replace(case, ours=lambda x: case.ours(x) * (1 + 1e-6 * torch.rand(1, generator=noise)))
    found = guard(wrong, Setting(torch.float32, 5, "mixed"), CPU)
    assert not found.same
    assert not found.right


def test_settings_reach_long_lengths_and_every_decay():
    wanted = settings(small())
    assert {setting.decays for setting in wanted} == {"weak", "strong", "mixed", "extreme"}
    assert {1, 16384} <= {setting.tokens for setting in wanted}
    assert {setting.dtype for setting in wanted} == {torch.bfloat16, torch.float32}
    assert {setting.decays for setting in settings(case_of("deltanet"))} == {""}
    # Narrow heads may have kernels of their own, which meet long sequences too.
    assert {setting.tokens for setting in settings(case_of("attn")) if setting.width == 8} == {200, 1000, 16384}


@pytest.mark.parametrize("name", ["gla", "fox"])
def test_stacked_members_are_held_to_each_members_own_result(name):
    found = guard(case_of(name), Setting(torch.float32, 5, "mixed", replicas=3), CPU)
    assert found.right
    assert found.members == 3
    assert max(setting.replicas for setting in settings(case_of(name))) == 3


@pytest.mark.parametrize("name", sorted(set(CASES) - {"swiglu"}))
def test_narrow_heads_are_held_to_the_definition(name):
    case = CASES[name]
    assert {(each.width, each.replicas) for each in settings(case) if each.width} == {
        (width, replicas) for width in (8, 12, 16, 24, 32, 64) for replicas in (1, 3)
    }
    decays = "mixed" if "g" in case.draw(1, 1, torch.Generator()) else ""
    for width, replicas in ((8, 1), (12, 3)):
        found = guard(case, Setting(torch.float32, 5, decays, replicas, width), CPU)
        assert found.right
        assert (found.width, found.members) == (width, replicas)


def test_a_whole_swiglu_is_guarded_at_widths_that_fill_their_tiles_and_that_do_not():
    assert {(one.width, one.replicas) for one in settings(case_of("swiglu"))} == {(0, 1), (0, 3), (72, 1), (72, 3)}
    for width in (0, 72):
        found = guard(case_of("swiglu"), Setting(torch.float32, 5, "", 3, width), CPU)
        assert found.right
        assert found.path == "products"


def test_a_gradient_that_is_small_is_measured_by_itself():
    """Under gates that forget at once a query sees little but its own key, and its gradient is four orders below that
    of the values: an error of it is seen all the same."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return (1 + 1e-5) * grad

    case, sharp = CASES["fox"], Setting(torch.float64, 65, "strong")
    assert guard(case, Setting(torch.float32, 65, "strong"), CPU).right
    assert guard(case, sharp, CPU).error < 1e-6  # the gates and their gradients are fp32
    wrong = dataclasses.replace(case, ours=lambda x: case.ours(x | {"q": Scaled.apply(x["q"])}))
    found = guard(wrong, sharp, CPU)
    assert found.error > 9e-6
    assert found.worst == "gradient of q"


def test_a_member_that_sees_another_is_seen():
    class Mixed(torch.autograd.Function):
        generate_vmap_rule = False

        @staticmethod
        def forward(x):
            return x.clone()

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, grad):
            return grad

        @staticmethod
        def vmap(info, in_dims, x):
            return x.roll(1, in_dims[0]), in_dims[0]

    case = small()
    wrong = dataclasses.replace(case, ours=lambda x: case.ours(x | {"v": Mixed.apply(x["v"])}))
    assert guard(wrong, Setting(torch.float32, 5, "mixed"), CPU).right
    assert not guard(wrong, Setting(torch.float32, 5, "mixed", replicas=2), CPU).right


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
        case_of("mlp")
    assert {"gla", "mamba2", "kda"} <= set(OPS)
