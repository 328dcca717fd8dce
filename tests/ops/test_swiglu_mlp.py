"""A whole SwiGLU as one operator: what a fleet's recorded step holds, and when it is taken. Its kernels are held to
their definition in `test_kernels.py`."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE
from torch.utils._python_dispatch import TorchDispatchMode

from plait.mixers import mlp_module
from plait.model import build
from plait.ops import swiglu_mlp
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
    monkeypatch.setattr(mlp_module, "fused_takes", lambda x: True)
    recorded = record_gradients(gradients, params, tokens)
    with Calls() as calls:
        found, found_losses = recorded(params, tokens, tokens)
    rows = (members, 10, 16)
    assert calls.seen == [("swiglu_mlp", rows)] * 2 + [("swiglu_mlp_backward", rows)] * 2
    torch.testing.assert_close(found_losses, losses, rtol=1e-5, atol=1e-6)
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("width", "dtype", "fits"), [(128, torch.bfloat16, True), (160, torch.bfloat16, False), (128, torch.float32, False)]
)
def test_narrow_models_in_half_precision_take_it_on_a_gpu(width, dtype, fits, monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(swiglu_mlp, "ENABLED", True)
    with FakeTensorMode():
        assert not swiglu_mlp.takes(torch.empty(2, width, dtype=dtype))
        assert swiglu_mlp.takes(torch.empty(2, width, dtype=dtype, device="cuda")) == fits
