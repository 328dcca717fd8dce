"""The selective scan: fast = reference, step by step = parallel, and every transform the fleet needs."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from plait.ops import paths
from plait.ops.scan import selective_scan, selective_scan_reference, selective_scan_step

LENGTHS = [1, 2, 63, 64, 65, 257]


def draw(B: int, T: int, E: int, N: int, *, decays: str = "mixed", dtype: torch.dtype = torch.float32) -> list[Tensor]:
    """u, Δ, A, B, C, D, state, with per-step decays exp(ΔA) as asked."""
    torch.manual_seed(T)
    low, high = {"slow": (1e-6, 1e-6), "fast": (13.8, 13.8), "mixed": (1e-6, 13.8)}[decays]
    step = torch.exp(torch.empty(B, T, E, dtype=dtype).uniform_(math.log(low), math.log(high)))
    A = -torch.empty(E, N, dtype=dtype).uniform_(0.9, 1.0)
    u, state = torch.randn(B, T, E, dtype=dtype) / step.clamp(min=0.1), torch.randn(B, E, N, dtype=dtype)
    B_, C = torch.randn(B, T, N, dtype=dtype), torch.randn(B, T, N, dtype=dtype)
    return [x.requires_grad_() for x in (u, step, A, B_, C, torch.randn(E, dtype=dtype), state)]


def outputs_and_gradients(scan, inputs: list[Tensor], **options) -> list[Tensor]:
    y, state = scan(*inputs[:6], state_BEN=inputs[6], **options)
    torch.manual_seed(0)
    loss = sum((x * torch.randn(x.shape, dtype=x.dtype)).sum() for x in (y, state))
    return [y, state, *torch.autograd.grad(loss, inputs)]


def assert_close(got: list[Tensor], want: list[Tensor], tolerance: float = 1e-5) -> None:
    for i, (g, w) in enumerate(zip(got, want, strict=True)):
        assert torch.isfinite(g).all(), f"tensor {i} is not finite"
        error = (g - w).abs().max() / w.abs().max().clamp(min=1e-30)
        assert error < tolerance, f"tensor {i} is off by {error:.1e} of its scale"


@pytest.mark.parametrize("decays", ["slow", "fast", "mixed"])
@pytest.mark.parametrize("T", LENGTHS)
def test_fast_is_reference(T: int, decays: str) -> None:
    inputs = draw(2, T, 5, 3, decays=decays)
    assert_close(outputs_and_gradients(selective_scan, inputs), outputs_and_gradients(selective_scan_reference, inputs))


@pytest.mark.parametrize("chunk", [1, 3, 16, 100])
def test_the_chunk_does_not_matter(chunk: int) -> None:
    inputs = draw(2, 37, 4, 3)
    want = outputs_and_gradients(selective_scan_reference, inputs)
    assert_close(outputs_and_gradients(selective_scan, inputs, chunk=chunk), want)


def test_blocks_smaller_than_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two rows a block over a batch of five: a short last block, and gradients of A and D added over blocks."""
    inputs = draw(5, 32, 4, 3)
    want = outputs_and_gradients(selective_scan_reference, inputs)
    monkeypatch.setattr(paths, "_BLOCK_ON_CPU", 2 * 8 * 4 * 3)
    assert_close(outputs_and_gradients(selective_scan, inputs, chunk=4), want)


def test_defaults_are_no_skip_and_a_zero_state() -> None:
    u, delta, A, B, C, D, state = draw(2, 9, 4, 3)
    plain, _ = selective_scan(u, delta, A, B, C)
    spelled_out, _ = selective_scan(u, delta, A, B, C, torch.zeros_like(D), state_BEN=torch.zeros_like(state))
    torch.testing.assert_close(plain, spelled_out)
    torch.testing.assert_close(plain, selective_scan_reference(u, delta, A, B, C)[0])


def test_steps_are_the_parallel_form() -> None:
    u, delta, A, B, C, D, state = draw(2, 21, 4, 3)
    want, want_state = selective_scan(u, delta, A, B, C, D, state_BEN=state)
    for t in range(21):
        y, state = selective_scan_step(u[:, t], delta[:, t], A, B[:, t], C[:, t], D, state)
        torch.testing.assert_close(y, want[:, t], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(state, want_state, rtol=1e-4, atol=1e-5)


def test_two_halves_are_one_call() -> None:
    def in_halves(u, delta, A, B, C, D, *, state_BEN):
        first, state = selective_scan(u[:, :40], delta[:, :40], A, B[:, :40], C[:, :40], D, state_BEN=state_BEN)
        second, state = selective_scan(u[:, 40:], delta[:, 40:], A, B[:, 40:], C[:, 40:], D, state_BEN=state)
        return torch.cat((first, second), dim=1), state

    inputs = draw(2, 65, 4, 3)
    assert_close(outputs_and_gradients(in_halves, inputs), outputs_and_gradients(selective_scan, inputs))


def test_gradients_of_one_output_alone() -> None:
    inputs = draw(2, 9, 4, 3)
    for which in (0, 1):
        got, want = (
            torch.autograd.grad(scan(*inputs[:6], state_BEN=inputs[6])[which].square().sum(), inputs, allow_unused=True)
            for scan in (selective_scan, selective_scan_reference)
        )
        zeros = [torch.zeros_like(x) for x in inputs]
        for g, w, zero in zip(got, want, zeros, strict=True):
            torch.testing.assert_close(zero if g is None else g, zero if w is None else w, rtol=1e-4, atol=1e-4)


def test_gradcheck_in_double() -> None:
    u, delta, A, B, C, D, state = (x.detach() for x in draw(2, 5, 3, 2, dtype=torch.float64))
    inputs = [x.requires_grad_() for x in (u, delta.clamp(0.05, 2.0), A, B, C, D, state)]
    assert torch.autograd.gradcheck(lambda *x: selective_scan(*x[:6], state_BEN=x[6], chunk=2), inputs)


def _loss(scan, params: dict[str, Tensor], x: Tensor) -> Tensor:
    y, state = scan(x, torch.sigmoid(x * params["w"]), -params["A"].exp(), x[..., :3], x[..., 1:4], params["D"])
    return y.square().sum() + state.sum()


@pytest.mark.parametrize("shared_data", [False, True])
def test_a_stack_of_models_under_vmap_of_grad(shared_data: bool) -> None:
    torch.manual_seed(0)
    params = {"w": torch.randn(3, 6), "A": torch.randn(3, 6, 3), "D": torch.randn(3, 6)}
    x = torch.randn(2, 13, 6) if shared_data else torch.randn(3, 2, 13, 6)
    in_dims = (0, None if shared_data else 0)
    got = torch.func.vmap(torch.func.grad(lambda p, x: _loss(selective_scan, p, x)), in_dims)(params, x)
    for i in range(3):
        member = {name: p[i] for name, p in params.items()}
        data = x if shared_data else x[i]
        want = torch.func.grad(lambda p, data=data: _loss(selective_scan_reference, p, data))(member)
        for name in params:
            torch.testing.assert_close(got[name][i], want[name], rtol=1e-4, atol=1e-4)


def test_compiled_whole_with_vmap_of_grad() -> None:
    torch.manual_seed(0)
    params = {"w": torch.randn(2, 6), "A": torch.randn(2, 6, 3), "D": torch.randn(2, 6)}
    x = torch.randn(2, 2, 13, 6)
    step = torch.func.vmap(torch.func.grad(lambda p, x: _loss(selective_scan, p, x)))
    got = torch.compile(step, fullgraph=True, backend="aot_eager")(params, x)
    for name, want in step(params, x).items():
        torch.testing.assert_close(got[name], want, rtol=1e-4, atol=1e-4)
