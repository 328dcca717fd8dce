"""The GPU's delta rule with a decay per channel against the loop: on a GPU, or in Triton's interpreter."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from interpreted import DEVICE, slow_if_interpreted
from torch import Tensor

from plait.ops.channel_delta import channel_delta, channel_delta_kernels
from plait.ops.dplr import dplr_reference

NAMES = ("q", "k", "e", "v", "g", "state")

REGIMES: dict[str, Callable[[Tensor], Tensor]] = {
    "weak": lambda u: -1e-6 * (1 + u),
    "strong": lambda u: -13.8 * (0.5 + u),
    "mixed": lambda u: -torch.exp(math.log(1e-6) + u * math.log(13.8e6)),
}


def make_inputs(
    B: int, T: int, H: int, K: int, V: int, *, regime: str = "mixed", dtype: torch.dtype = torch.float32
) -> dict[str, Tensor]:
    stream = torch.Generator().manual_seed(T + 10 * K)
    key = F.normalize(torch.randn(B, T, H, K, generator=stream), dim=-1)
    inputs = {
        "q": torch.randn(B, T, H, K, generator=stream).to(dtype),
        "k": (2 * torch.rand(B, T, H, 1, generator=stream) * key).to(dtype),
        "e": (key * torch.rand(B, T, H, K, generator=stream)).to(dtype),
        "v": torch.randn(B, T, H, V, generator=stream).to(dtype),
        "g": REGIMES[regime](torch.rand(B, T, H, K, generator=stream)),
        "state": torch.randn(B, H, K, V, generator=stream),
    }
    return {name: x.to(DEVICE) for name, x in inputs.items()}


def kernels(q: Tensor, k: Tensor, e: Tensor, v: Tensor, g: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    return channel_delta_kernels(q, k, e, v, g, state, 0.5)


def loop(q: Tensor, k: Tensor, e: Tensor, v: Tensor, g: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    return dplr_reference(q, k, v, g.exp() * e, -k, g, scale=0.5, state=state)


def results(op: Callable[..., tuple[Tensor, Tensor]], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Output, final state, and the gradient of every input for one fixed random weighting of both."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    o, state = op(*(leaves.get(name) for name in NAMES))
    stream = torch.Generator().manual_seed(0)
    weights = [torch.randn(x.shape, generator=stream).to(x) for x in (o, state)]
    grads = torch.autograd.grad((o * weights[0]).sum() + (state * weights[1]).sum(), list(leaves.values()))
    return {"o": o, "final state": state} | {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}


def assert_equals_the_loop(inputs: dict[str, Tensor], tolerance: float = 1e-4) -> None:
    """Errors are measured against the largest value of the same tensor. Only bf16 takes these kernels: their dg is a
    difference of sums, which fp32 would miss."""
    got, expected = results(kernels, inputs), results(loop, {name: x.double() for name, x in inputs.items()})
    for name, want in expected.items():
        error = (got[name].double() - want).abs().max().item() / max(want.abs().max().item(), 1e-30)
        assert error <= tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("T", [1, 17, *(pytest.param(T, marks=slow_if_interpreted) for T in (33, 70))])
def test_equals_the_loop(T: int, regime: str) -> None:
    assert_equals_the_loop(make_inputs(1, T, 2, 16, 16, regime=regime))


@pytest.mark.parametrize("shape", [(2, 7, 3, 1, 6), (1, 33, 1, 6, 40), (1, 40, 1, 70, 3)])
def test_odd_widths(shape: tuple[int, int, int, int, int]) -> None:
    assert_equals_the_loop(make_inputs(*shape))


def test_without_a_first_state() -> None:
    inputs = make_inputs(1, 40, 2, 16, 16)
    del inputs["state"]
    assert_equals_the_loop(inputs)


def test_uninitialised_memory_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    plain, like = torch.Tensor.new_empty, torch.empty_like
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *size, **kw: plain(self, *size, **kw).fill_(math.nan))
    monkeypatch.setattr(torch, "empty_like", lambda x, **kw: like(x, **kw).fill_(math.nan))
    assert_equals_the_loop(make_inputs(1, 35, 1, 6, 20))


def test_vmap_of_gradients_matches_a_loop() -> None:
    whole = make_inputs(2, 19, 1, 8, 4)
    cases = [{name: x[i : i + 1] for name, x in whole.items()} for i in range(2)]
    stacked = {name: torch.stack([case[name] for case in cases]) for name in whole}

    def loss(i: dict[str, Tensor]) -> Tensor:
        o, state = kernels(*(i[name] for name in NAMES))
        return o.square().sum() + state.sum()

    together = torch.func.vmap(torch.func.grad(loss))(stacked)
    for i, case in enumerate(cases):
        for name, grad in torch.func.grad(loss)(case).items():
            torch.testing.assert_close(together[name][i], grad)


def test_a_compiled_graph_holds_one_operator() -> None:
    inputs = make_inputs(1, 40, 1, 16, 16)
    compiled = torch.compile(kernels, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(results(compiled, inputs), results(kernels, inputs))


def test_in_fp32_it_is_the_general_form() -> None:
    inputs = make_inputs(1, 40, 2, 5, 4)
    got = channel_delta(*(inputs[name] for name in NAMES[:5]), scale=0.5, state=inputs["state"])
    for ours, want in zip(got, loop(*(inputs[name] for name in NAMES)), strict=True):
        torch.testing.assert_close(ours, want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("T", [pytest.param(T, marks=slow_if_interpreted) for T in (1, 63, 257)])
def test_half_precision(T: int, regime: str) -> None:
    assert_equals_the_loop(make_inputs(1, T, 2, 128, 128, regime=regime, dtype=torch.bfloat16), 1e-2)


def test_narrow_heads_are_solved_in_eight_warps() -> None:
    """In four, an H200 with Triton 3.6 gave wrong outputs at 32 channels, which no interpreter shows."""
    from plait.ops.channel_delta_triton import channel_tunings

    assert [channel_tunings(torch.bfloat16, width).prepare.warps for width in (32, 64, 128)] == [8, 8, 4]
