"""Long convolutions: chunked, recurrent and direct forms are one function."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from plait.ops import longconv
from plait.ops.longconv import (
    long_conv_reference,
    modal_conv,
    modal_conv_step,
    modal_filter,
    multihead_conv,
    multihead_conv_reference,
    multihead_conv_step,
)

LENGTHS = [1, 2, 63, 64, 65, 257]
# log λ of per-step decays from 1 - 1e-6 down to 1e-6
DECAYS = torch.tensor([-1e-6, -1e-2, -0.5, -13.8])


def draw_modal(B: int, T: int, C: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """x, log λ, residues, skip, state."""
    torch.manual_seed(T)
    log_lambda = DECAYS.to(dtype) * torch.empty(C, 4, dtype=dtype).uniform_(0.5, 1.0)
    others = [torch.randn(shape, dtype=dtype) for shape in [(B, T, C), (C, 4), (C,), (B, C, 4)]]
    return [x.requires_grad_() for x in (others[0], log_lambda, *others[1:])]


def draw_heads(B: int, T: int, H: int, P: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """q, k, v, log λ, residues, state."""
    torch.manual_seed(T)
    q, k, v = (torch.randn(B, T, H, P, dtype=dtype) for _ in range(3))
    log_lambda = DECAYS.to(dtype) * torch.empty(H, 4, dtype=dtype).uniform_(0.5, 1.0)
    residues, state = torch.randn(H, 4, dtype=dtype), torch.randn(B, H, 4, P, P, dtype=dtype)
    return [x.requires_grad_() for x in (q, k, v, log_lambda, residues, state)]


def modal_conv_by_steps(x, log_lambda, residues, skip, state):
    ys = []
    for t in range(x.shape[1]):
        y, state = modal_conv_step(x[:, t], log_lambda, residues, skip, state)
        ys.append(y)
    return torch.stack(ys, dim=1), state


def modal_conv_whole(x, log_lambda, residues, skip, state):
    return modal_conv(x, log_lambda, residues, skip, state_BCS=state)


def heads_whole(q, k, v, log_lambda, residues, state):
    return multihead_conv(q, k, v, log_lambda, residues, state_BHSPP=state)


def heads_reference(q, k, v, log_lambda, residues, state):
    return multihead_conv_reference(q, k, v, log_lambda, residues, state_BHSPP=state)


def outputs_and_gradients(function, inputs: list[Tensor]) -> list[Tensor]:
    outputs = function(*inputs)
    torch.manual_seed(0)
    loss = sum((x * torch.randn(x.shape, dtype=x.dtype)).sum() for x in outputs)
    return [*outputs, *torch.autograd.grad(loss, inputs)]


def assert_close(got: list[Tensor], want: list[Tensor], tolerance: float = 1e-5) -> None:
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert g.shape == w.shape
        assert torch.isfinite(g).all(), f"tensor {i} is not finite"
        error = (g - w).abs().max() / w.abs().max().clamp(min=1e-30)
        assert error < tolerance, f"tensor {i} is off by {error:.1e} of its scale"


def test_the_modal_filter_is_the_impulse_response() -> None:
    _, log_lambda, residues, _, state = draw_modal(1, 9, 3)
    impulse = torch.zeros(1, 9, 3)
    impulse[:, 0] = 1
    response, _ = modal_conv_by_steps(impulse, log_lambda, residues, None, torch.zeros_like(state))
    torch.testing.assert_close(modal_filter(log_lambda, residues, 9), response[0].mT)


@pytest.mark.parametrize("T", LENGTHS)
def test_modal_conv_is_its_recurrence(T: int) -> None:
    inputs = draw_modal(2, T, 3)
    assert_close(outputs_and_gradients(modal_conv_whole, inputs), outputs_and_gradients(modal_conv_by_steps, inputs))


@pytest.mark.parametrize("T", [65, 100, 300])
def test_states_between_chunks_by_doubling(T: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU, and for many chunks."""
    monkeypatch.setattr(longconv, "_MOST_WALKED", 0)
    inputs = draw_modal(2, T, 3)
    assert_close(outputs_and_gradients(modal_conv_whole, inputs), outputs_and_gradients(modal_conv_by_steps, inputs))


@pytest.mark.parametrize("T", [7, 100])
def test_modal_conv_is_the_convolution_with_its_filter(T: int) -> None:
    x, log_lambda, residues, skip, _ = draw_modal(2, T, 3)
    want = long_conv_reference(x, modal_filter(log_lambda, residues, T), skip)
    assert_close([modal_conv(x, log_lambda, residues, skip)[0]], [want])
    assert_close([modal_conv(x, log_lambda, residues)[0]], [want - skip * x])


def test_modal_conv_in_two_halves() -> None:
    def in_halves(x, log_lambda, residues, skip, state):
        first, state = modal_conv(x[:, :70], log_lambda, residues, skip, state_BCS=state)
        second, state = modal_conv(x[:, 70:], log_lambda, residues, skip, state_BCS=state)
        return torch.cat((first, second), dim=1), state

    inputs = draw_modal(2, 101, 3)
    assert_close(outputs_and_gradients(in_halves, inputs), outputs_and_gradients(modal_conv_whole, inputs))


@pytest.mark.parametrize("T", LENGTHS)
def test_multihead_conv_is_its_recurrence(T: int) -> None:
    inputs = draw_heads(2, T, 3, 2)
    assert_close(outputs_and_gradients(heads_whole, inputs), outputs_and_gradients(heads_reference, inputs))


def test_multihead_conv_convolves_the_outer_products() -> None:
    q, k, v, log_lambda, residues, _ = draw_heads(2, 21, 3, 2)
    outer = k[..., :, None] * v[..., None, :]
    h_CT = modal_filter(log_lambda, residues, 21).repeat_interleave(4, dim=0)
    mixed = long_conv_reference(outer.flatten(2), h_CT).view_as(outer)
    assert_close([multihead_conv(q, k, v, log_lambda, residues)[0]], [torch.einsum("bthi,bthij->bthj", q, mixed)])


def test_multihead_conv_in_steps_and_halves() -> None:
    q, k, v, log_lambda, residues, state = draw_heads(2, 37, 3, 2)
    want = heads_whole(q, k, v, log_lambda, residues, state)
    first, middle = heads_whole(q[:, :20], k[:, :20], v[:, :20], log_lambda, residues, state)
    second, end = heads_whole(q[:, 20:], k[:, 20:], v[:, 20:], log_lambda, residues, middle)
    assert_close([torch.cat((first, second), dim=1), end], list(want))
    for t in range(37):
        y, state = multihead_conv_step(q[:, t], k[:, t], v[:, t], log_lambda, residues, state)
        torch.testing.assert_close(y, want[0][:, t], rtol=1e-4, atol=1e-4)


def test_gradcheck_in_double() -> None:
    assert torch.autograd.gradcheck(modal_conv_whole, draw_modal(1, 5, 2, torch.float64))
    assert torch.autograd.gradcheck(heads_whole, draw_heads(1, 19, 1, 2, torch.float64))


@pytest.mark.parametrize(
    ("function", "inputs"),
    [
        (modal_conv_whole, draw_modal(2, 70, 3)),
        (heads_whole, draw_heads(2, 19, 3, 2)),
    ],
    ids=["modal", "heads"],
)
def test_vmap_of_grad(function, inputs: list[Tensor]) -> None:
    argnums = tuple(range(len(inputs)))
    stacked = [torch.stack((x.detach(), 0.9 * x.detach())) for x in inputs]
    gradient = torch.func.grad(lambda *x: sum(y.square().sum() for y in function(*x)), argnums)
    got = torch.func.vmap(gradient)(*stacked)
    for i in range(2):
        assert_close([g[i] for g in got], list(gradient(*(x[i] for x in stacked))))
