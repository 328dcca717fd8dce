"""GPUs without our kernels: ops take their plain form there, in a precision that the GPU has."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch._subclasses import FakeTensorMode

from plait.core.errors import UserError
from plait.mixers.table import MIXERS, load
from plait.model import build
from plait.model.mixer_runs import fitting_width
from plait.ops import gpu
from plait.ops.attention import attention_path
from plait.ops.gpu import compiler_on, why_no_kernels
from plait.ops.paths import autocast_on, has_kernels, precision_on, watched_paths

TURING, AMPERE, HOPPER = (7, 5), (8, 6), (9, 0)
CUDA = torch.device("cuda")
KERNELS = {"triton", "narrow", "forgetting", "cudnn"}


@pytest.mark.parametrize(
    ("capability", "more", "reason"),
    [
        (AMPERE, {}, ""),
        (HOPPER, {}, ""),
        (TURING, {}, "plait's kernels need compute capability 8.0, this GPU has 7.5"),
        (HOPPER, {"hip": "7.1"}, "plait's kernels are for NVIDIA's GPUs"),  # MI200 counts as 9.0, too
        (HOPPER, {"triton": False}, "Triton is not installed"),
    ],
)
def test_why_there_are_no_kernels(pretend_gpu, capability, more, reason):
    pretend_gpu(capability, **more)
    assert why_no_kernels(0) == reason


@pytest.mark.parametrize(
    ("capability", "more", "precision", "compiles"),
    [
        (AMPERE, {}, "bf16", True),
        (TURING, {}, "fp32", True),
        ((6, 1), {}, "fp32", False),
        (HOPPER, {"triton": False}, "bf16", False),
        ((9, 0), {"hip": "7.1"}, "bf16", True),
    ],
)
def test_precision_and_compiler(pretend_gpu, capability, more, precision, compiles):
    pretend_gpu(capability, **more)
    assert precision_on("cuda") == precision_on("cuda:1") == precision
    assert compiler_on(CUDA) == compiles
    assert (precision_on("cpu"), precision_on("mps"), compiler_on(torch.device("cpu"))) == ("fp32", "fp32", False)


def test_a_training_planned_where_there_is_no_gpu_is_in_bf16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert precision_on("cuda") == "bf16"
    with pytest.raises(UserError, match=r"^device banana: known: cpu, mps, cuda"):
        precision_on("banana")


def test_in_a_graph_what_the_gpu_can_do_is_a_constant(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: HOPPER)

    def doubled_in_half(x):
        with autocast_on(CUDA):
            return x + x if has_kernels(x) and precision_on(CUDA) == "bf16" else x

    graphs = []
    torch._dynamo.reset()
    with FakeTensorMode():
        x = torch.empty(3, device=CUDA)
        torch.compile(doubled_in_half, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)(x)
    assert "add" in graphs[0].code


@pytest.mark.parametrize(
    ("kib", "width", "dtype", "path"),
    [
        (100, 128, torch.float32, "tiled"),
        (100, 128, torch.bfloat16, "forgetting"),
        (100, 64, torch.float32, "forgetting"),
        (164, 128, torch.float32, "forgetting"),
    ],
)
def test_tiles_that_do_not_fit_are_not_taken(pretend_gpu, monkeypatch, kib, width, dtype, path):
    pretend_gpu(AMPERE)
    about = SimpleNamespace(shared_memory_per_multiprocessor=kib * 1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: about)
    with FakeTensorMode():
        q, gates = (torch.empty(2, 40, 3, *more, dtype=dtype, device=CUDA) for more in ((width,), ()))
        assert attention_path(q, q, log_f_BNH=gates) == path


def test_what_a_graph_takes_as_constants_is_marked_as_torch_marks_it():
    """By hand, because torch's own decorator imports the compiler."""
    marked = vars(torch.compiler.assume_constant_result(lambda: True)).items()
    facts = gpu.runs_kernels, gpu.is_hopper, gpu.has_cudnn_attention, gpu.has_large_shared_memory, gpu.multiplies_bf16
    for function in facts:
        assert marked <= vars(function).items()


@pytest.mark.parametrize("name", MIXERS)
@pytest.mark.parametrize("where", [(TURING, {}), (HOPPER, {"hip": "7.1"}), (HOPPER, {"triton": False})])
def test_every_mixer_runs_without_kernels(pretend_gpu, monkeypatch, name, where):
    """On tensors of the CPU that call themselves a GPU's, on which a kernel would fail."""
    options = load(name)()
    before = {"gmu": "mamba", "cross-attn": "attn"}.get(name, "")  # what they read from
    model = build(f"d={fitting_width(options)} vocab=16 | {before} {name}", seed=0)
    tokens = torch.randint(16, (2, 40), generator=torch.Generator().manual_seed(1))

    def gradients():
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        return torch.autograd.grad(loss, list(model.parameters()), allow_unused=True, materialize_grads=True)

    expected = gradients()
    pretend_gpu(where[0], **where[1])
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda x: True))
    with watched_paths() as taken:
        ours = gradients()
    assert not KERNELS & set(taken.values())
    for grad, wanted in zip(ours, expected, strict=True):
        torch.testing.assert_close(grad, wanted, rtol=1e-3, atol=1e-4 * float(wanted.abs().max() + 1e-6))
