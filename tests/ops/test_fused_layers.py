"""A whole SwiGLU, or attention with its rotation, as one operator: what a fleet's recorded step holds, and when it is
taken. Their kernels are held to their definitions in `test_kernels.py`."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE
from torch.utils._python_dispatch import TorchDispatchMode

from plait.mixers import attn_module, mlp_module
from plait.model import build
from plait.ops import narrow_attention, swiglu_mlp
from plait.ops.swiglu_mlp import HALF
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


@pytest.mark.parametrize(
    ("body", "mixer", "operator", "sizes"),
    [
        ("swiglu[inner=24] swiglu[inner=24]", mlp_module.Swiglu, "swiglu_mlp", (10, 16)),
        ("attn[heads=2] attn[heads=2]", attn_module.Attention, "packed_attention", (5, 6, 8)),
    ],
)
def test_a_recorded_step_holds_it_once_a_layer_and_its_gradient_is_the_gradient(
    body, mixer, operator, sizes, monkeypatch
):
    members = 3
    models = [WithLoss(build(f"d=16 vocab=8 | {body}", seed=seed, device=DEVICE)) for seed in range(members)]
    parameters = [dict(model.named_parameters()) for model in models]
    params = {name: torch.stack([each[name].detach() for each in parameters]) for name in parameters[0]}
    tokens = torch.randint(8, (members, 2, 5), device=DEVICE)

    def loss(params, tokens, targets):
        return torch.func.functional_call(models[0], params, (tokens, targets))

    gradients = torch.func.vmap(torch.func.grad_and_value(loss))
    expected, losses = gradients(params, tokens, tokens)
    monkeypatch.setattr(mixer, "_is_one_operator", lambda *_: True)
    recorded = record_gradients(gradients, params, tokens)
    with Calls() as calls:
        found, found_losses = recorded(params, tokens, tokens)
    forward, backward = (seen for seen, _ in (calls.seen[0], calls.seen[-1]))
    assert (forward, backward) == (operator, f"{operator}_backward")
    assert [seen for seen, _ in calls.seen] == [forward] * 2 + [backward] * 2
    assert calls.seen[0][1] == (members if operator == "swiglu_mlp" else members * 2, *sizes)
    torch.testing.assert_close(found_losses, losses, rtol=1e-5, atol=1e-6)
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("width", "dtype", "fits"), [(128, torch.bfloat16, True), (160, torch.bfloat16, False), (128, torch.float32, False)]
)
def test_narrow_models_in_half_precision_take_it_on_a_gpu(width, dtype, fits, monkeypatch):
    from torch._subclasses.fake_tensor import FakeTensorMode

    monkeypatch.setattr(swiglu_mlp, "ENABLED", True)
    monkeypatch.setattr(narrow_attention, "PACKED", True)
    with FakeTensorMode():
        assert narrow_attention.takes_packed(torch.empty(2, 3, 64, dtype=dtype, device="cuda"), 8) == (dtype in HALF)
        assert not narrow_attention.takes_packed(torch.empty(2, 3, 64, dtype=dtype, device="cuda"), 64)
        assert not narrow_attention.takes_packed(torch.empty(2, 3, 64, dtype=dtype), 8)
        assert not swiglu_mlp.takes(torch.empty(2, width, dtype=dtype))
        assert swiglu_mlp.takes(torch.empty(2, width, dtype=dtype, device="cuda")) == fits
