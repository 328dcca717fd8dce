"""The short convolution: fast = reference = torch's, streaming = parallel, under every transform the fleet needs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from plait.core.errors import UserError
from plait.ops import paths
from plait.ops.shortconv import short_conv, short_conv_reference, short_conv_step


def draw(B: int, T: int, C: int, W: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """x, weight, bias, state."""
    torch.manual_seed(T)
    shapes = [(B, T, C), (C, W), (C,), (B, W - 1, C)]
    return [torch.randn(shape, dtype=dtype, requires_grad=True) for shape in shapes]


def outputs_and_gradients(conv, inputs: list[Tensor], **options) -> list[Tensor]:
    y, state = conv(*inputs[:3], state_BHC=inputs[3], **options)
    torch.manual_seed(0)
    loss = sum((x * torch.randn(x.shape, dtype=x.dtype)).sum() for x in (y, state))
    return [y, state, *torch.autograd.grad(loss, inputs)]


@pytest.mark.parametrize("activation", [None, "silu"])
@pytest.mark.parametrize("W", [1, 3, 4])
@pytest.mark.parametrize("T", [1, 2, 63, 64, 65, 257])
def test_fast_is_reference(T: int, W: int, activation: str | None) -> None:
    inputs = draw(2, T, 5, W)
    got = outputs_and_gradients(short_conv, inputs, activation=activation)
    want = outputs_and_gradients(short_conv_reference, inputs, activation=activation)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(
            g, w, rtol=1e-5, atol=1e-5 * max(1.0, float(w.detach().abs().max())) if w.numel() else 0
        )


def test_is_torchs_grouped_convolution() -> None:
    x, weight, bias, _ = draw(2, 9, 5, 4)
    want = F.conv1d(F.pad(x.mT, (3, 0)), weight[:, None], bias, groups=5).mT
    torch.testing.assert_close(short_conv(x, weight, bias)[0], want)
    torch.testing.assert_close(short_conv(x, weight)[0], want - bias)


def test_blocks_smaller_than_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = draw(5, 6, 4, 3)
    want = outputs_and_gradients(short_conv_reference, inputs)
    monkeypatch.setattr(paths, "_BLOCK_ON_CPU", 2 * 6 * 4)
    for g, w in zip(outputs_and_gradients(short_conv, inputs), want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-5, atol=1e-5)


def test_steps_and_halves_are_one_call() -> None:
    x, weight, bias, state = draw(2, 9, 5, 4)
    want, want_state = short_conv(x, weight, bias, state_BHC=state, activation="silu")
    first, middle = short_conv(x[:, :2], weight, bias, state_BHC=state, activation="silu")
    second, end = short_conv(x[:, 2:], weight, bias, state_BHC=middle, activation="silu")
    torch.testing.assert_close(torch.cat((first, second), dim=1), want)
    torch.testing.assert_close(end, want_state)
    for t in range(9):
        y, state = short_conv_step(x[:, t], weight, bias, state, "silu")
        torch.testing.assert_close(y, want[:, t])
    torch.testing.assert_close(state, want_state)


@pytest.mark.parametrize("T", [1, 5])
def test_gradcheck_in_double(T: int) -> None:
    inputs = draw(2, T, 3, 3, torch.float64)
    assert torch.autograd.gradcheck(lambda *x: short_conv(*x[:3], state_BHC=x[3]), inputs)


@pytest.mark.parametrize("compiled", [False, True])
def test_vmap_of_grad(compiled: bool) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(3, 5, 4), torch.randn(3, 5), torch.randn(2, 9, 5)

    def loss(conv, weight: Tensor, bias: Tensor) -> Tensor:
        return conv(x, weight, bias, activation="silu")[0].square().sum()

    step = torch.func.vmap(torch.func.grad(lambda w, b: loss(short_conv, w, b), argnums=(0, 1)))
    got = (torch.compile(step, fullgraph=True, backend="aot_eager") if compiled else step)(weight, bias)
    for i in range(3):
        want = torch.func.grad(lambda w, b: loss(short_conv_reference, w, b), argnums=(0, 1))(weight[i], bias[i])
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g[i], w, rtol=1e-4, atol=1e-4)


def test_unknown_activation_is_refused() -> None:
    x, weight, bias, _ = draw(1, 2, 3, 3)
    with pytest.raises(UserError, match=r"'gelu'.*'silu'"):
        short_conv(x, weight, bias, activation="gelu")
