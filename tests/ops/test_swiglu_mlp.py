"""A whole SwiGLU as one operator: what a fleet's recorded step holds, and when it is taken. Its kernels are held to
their definition in `test_kernels.py`."""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
from interpreted import DEVICE
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from plait.mixers import mlp_module
from plait.mixers.mlp import SwigluOptions
from plait.model import build
from plait.ops import swiglu_mlp
from plait.ops.paths import plain_ops, watched_paths
from plait.training.ensemble_step import WithLoss, record_gradients


class Calls(TorchDispatchMode):
    """Plait's operators, with the shape of what they are first given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, tuple[int, ...]]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "plait":
            self.seen.append((func._opname, tuple(args[0].shape)))
        return func(*args, **(kwargs or {}))


def take_kernels(monkeypatch):
    """Here, too, where there may be no GPU."""
    monkeypatch.setattr(mlp_module, "has_kernels", lambda x: True)
    monkeypatch.setattr(mlp_module, "swiglu_path", lambda x, down: "triton")


def test_a_recorded_step_holds_it_once_a_layer_and_its_gradient_is_the_gradient(monkeypatch):
    spec, members = "d=16 vocab=8 | swiglu[inner=24] swiglu[inner=24]", 3
    models = [WithLoss(build(spec, seed=seed, device=DEVICE)) for seed in range(members)]
    params = {
        name: torch.stack([dict(m.named_parameters())[name].detach() for m in models])
        for name in models[0].state_dict()
    }
    tokens = torch.randint(8, (members, 2, 5), device=DEVICE)

    def loss(params, tokens, targets):
        return torch.func.functional_call(models[0], params, (tokens, targets))

    gradients = torch.func.vmap(torch.func.grad_and_value(loss))
    expected, losses = gradients(params, tokens, tokens)
    take_kernels(monkeypatch)
    recorded = record_gradients(gradients, params, (tokens, tokens.clone()))
    with Calls() as calls:
        found, found_losses = recorded(params, tokens, tokens)
    rows = (members, 10, 16)
    assert calls.seen == [("swiglu_mlp", rows)] * 2 + [("swiglu_mlp_backward", rows)] * 2
    torch.testing.assert_close(found_losses, losses, rtol=1e-5, atol=1e-6)
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


BF16, FP32 = torch.bfloat16, torch.float32


def path(width: int = 128, inner: int = 512, dtype: torch.dtype = BF16, rows: int = 2, device: str = "cuda") -> str:
    with FakeTensorMode():
        x = torch.empty(rows, width, dtype=dtype, device=device)
        return swiglu_mlp.swiglu_path(x, torch.empty(width, inner, dtype=dtype, device=device))


@pytest.fixture
def on_hopper(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: (9, 0))


@pytest.mark.usefixtures("on_hopper")
def test_what_was_measured_takes_the_kernels_and_nothing_else_does(monkeypatch):
    assert path() == path(72, 176) == "triton"
    for other in (
        {"width": 64}, {"width": 136}, {"width": 100}, {"inner": 508}, {"dtype": FP32}, {"dtype": torch.float16},
        {"device": "cpu"}, {"rows": 2**31 // 1024},
    ):  # fmt: skip
        assert path(**other) == "products", other
    with plain_ops():
        assert path() == "products"
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: (10, 0))
    assert path() == "products"


@pytest.mark.usefixtures("on_hopper")
def test_under_autocast_its_dtype_counts():
    torch.set_autocast_enabled("cuda", True)  # `torch.autocast` does not where there is no GPU
    try:
        assert torch.get_autocast_dtype("cuda") == torch.float16
        assert path(dtype=BF16) == "products"
        torch.set_autocast_dtype("cuda", BF16)
        assert path(dtype=FP32) == "triton"
        assert path(dtype=torch.float64) == "products"
    finally:
        torch.set_autocast_dtype("cuda", torch.float16)
        torch.set_autocast_enabled("cuda", False)


@pytest.mark.usefixtures("on_hopper")
def test_second_derivatives_and_forward_mode_take_products():
    seen = []

    def asks(x):
        seen.append(path())
        return x.square().sum()

    x, grad = torch.ones(2, 3), torch.func.grad
    torch.func.vmap(grad(asks))(x)
    assert seen == ["triton"]
    grad(lambda x: grad(asks)(x).sum())(x)
    torch.func.jvp(asks, (x,), (x,))
    torch.func.hessian(asks)(x)
    with torch.autograd.forward_ad.dual_level():
        asks(x)
    assert seen[1:] == ["products"] * 4


@pytest.fixture
def taken(monkeypatch):
    """A mixer that takes the kernels, and inputs."""
    take_kernels(monkeypatch)
    mixer = mlp_module.Swiglu(16, SwigluOptions(inner=24)).to(DEVICE)
    return mixer, torch.randn(2, 5, 16, device=DEVICE, requires_grad=True)


def gradients(y, x, mixer):
    return torch.autograd.grad(y.square().sum(), [x, *mixer.parameters()])


def test_checkpointed_it_has_the_same_gradient(taken):
    mixer, x = taken
    with Calls() as calls:
        found = gradients(checkpoint(mixer, x, use_reentrant=False), x, mixer)
    assert [name for name, _ in calls.seen] == ["swiglu_mlp"] * 2 + ["swiglu_mlp_backward"]
    for grad, expected in zip(found, gradients(mixer(x), x, mixer), strict=True):
        torch.testing.assert_close(grad, expected, rtol=0, atol=0)


def test_a_compiled_graph_holds_it_as_one_node(taken):
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    mixer, x = taken
    held = []

    def keep(graph, _):
        held.append([str(node.target) for node in graph.graph.nodes if "plait" in str(node.target)])
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    compiled = torch.compile(mixer, fullgraph=True, backend=aot_autograd(fw_compiler=keep, bw_compiler=keep))
    found = gradients(compiled(x), x, mixer)
    assert held == [["plait.swiglu_mlp.default"], ["plait.swiglu_mlp_backward.default"]]
    for grad, expected in zip(found, gradients(mixer(x), x, mixer), strict=True):
        torch.testing.assert_close(grad, expected)


def test_a_compiler_sees_the_path(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))

    def doubled_if_taken(x, down):
        return x + x if swiglu_mlp.swiglu_path(x, down) == "triton" else x

    graphs = []
    torch._dynamo.reset()
    with FakeTensorMode():
        x, down = (torch.empty(rows, columns, dtype=BF16, device="cuda") for rows, columns in ((2, 128), (128, 512)))
        torch.compile(doubled_if_taken, fullgraph=True, backend=lambda graph, _: graphs.append(graph) or graph)(x, down)
    assert "add" in graphs[0].code


def test_linear_maps_that_are_more_than_their_weights_are_called(taken):
    class Cut(torch.nn.Linear):
        """As tensor parallelism makes them."""

    mixer, x = taken
    with watched_paths() as paths:
        y = mixer(x)
        assert paths == {"swiglu": "triton"}
        mixer.down.__class__ = Cut
        torch.testing.assert_close(mixer(x), y)
    assert paths == {"swiglu": "products"}
