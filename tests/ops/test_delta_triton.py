"""The GPU's delta rule against the loop: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from interpreted import DEVICE, needs_gpu, slow_if_interpreted
from torch import Tensor

from plait.ops.delta import delta_kernels, delta_reference

REGIMES: dict[str, Callable[[Tensor], Tensor]] = {
    "weak": lambda u: -1e-6 * (1 + u),
    "strong": lambda u: -13.8 * (0.5 + u),
    "mixed": lambda u: -torch.exp(math.log(1e-6) + u * math.log(13.8e6)),
    "extreme": lambda u: torch.where(u < 0.3, -100.0, 0.0),
}


def make_inputs(
    B: int,
    T: int,
    H: int,
    K: int,
    V: int,
    *,
    regime: str | None,
    dtype: torch.dtype = torch.float32,
    alike: float = 0.0,
) -> dict[str, Tensor]:
    """Write strengths up to 2; `alike` gives all keys a common part."""
    stream = torch.Generator().manual_seed(T + 10 * K)
    drawn = lambda *shape: torch.randn(*shape, generator=stream)  # noqa: E731
    inputs = {
        "q": drawn(B, T, H, K).to(dtype),
        "k": F.normalize(drawn(B, T, H, K) + alike * drawn(B, 1, H, K), dim=-1).to(dtype),
        "v": drawn(B, T, H, V).to(dtype),
        "beta": 2 * torch.rand(B, T, H, generator=stream),
        "state": drawn(B, H, K, V),
    }
    if regime is not None:
        inputs["g"] = REGIMES[regime](torch.rand(B, T, H, generator=stream))
    return {name: x.to(DEVICE) for name, x in inputs.items()}


def results(op: Callable[..., tuple[Tensor, Tensor]], inputs: dict[str, Tensor]) -> dict[str, Tensor]:
    """Output, final state, and the gradient of every input for one fixed random weighting of both."""
    leaves = {name: x.clone().requires_grad_() for name, x in inputs.items()}
    o, state = op(*(leaves[name] for name in ("q", "k", "v", "beta")), leaves.get("g"), leaves.get("state"))
    stream = torch.Generator().manual_seed(0)
    weights = [torch.randn(x.shape, generator=stream).to(x) for x in (o, state)]
    grads = torch.autograd.grad((o * weights[0]).sum() + (state * weights[1]).sum(), list(leaves.values()))
    return {"o": o, "final state": state} | {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}


def kernels(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    return delta_kernels(q, k, v, beta, g, state, 0.5)


def loop(
    q: Tensor, k: Tensor, v: Tensor, beta: Tensor, g: Tensor | None, state: Tensor | None
) -> tuple[Tensor, Tensor]:
    return delta_reference(q, k, v, beta, g, scale=0.5, state=state)


def assert_equals_the_loop(inputs: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    """Errors are measured against the largest value of the same tensor."""
    got, expected = results(kernels, inputs), results(loop, {name: x.double() for name, x in inputs.items()})
    for name, want in expected.items():
        error = (got[name].double() - want).abs().max().item() / max(want.abs().max().item(), 1e-30)
        assert error <= tolerance, f"{name}: {error:.1e}"


@pytest.mark.parametrize("regime", [None, *REGIMES])
@pytest.mark.parametrize("T", [1, 2, 33, pytest.param(70, marks=slow_if_interpreted)])
def test_equals_the_loop(T: int, regime: str | None) -> None:
    assert_equals_the_loop(make_inputs(1, T, 2, 16, 16, regime=regime))


@pytest.mark.parametrize("shape", [(2, 7, 3, 1, 6), (1, 33, 1, 6, 40), (1, 40, 1, 70, 3)])
@pytest.mark.parametrize("regime", [None, "mixed"])
def test_odd_widths(shape: tuple[int, int, int, int, int], regime: str | None) -> None:
    assert_equals_the_loop(make_inputs(*shape, regime=regime))


def test_keys_that_are_alike() -> None:
    """Powers of the system's matrix would overflow the digits of fp32 here."""
    assert_equals_the_loop(make_inputs(1, 64, 1, 16, 8, regime=None, alike=3.0))


def test_without_a_first_state() -> None:
    inputs = make_inputs(1, 40, 2, 16, 16, regime="mixed")
    del inputs["state"]
    assert_equals_the_loop(inputs)


def test_slices_of_a_fused_projection() -> None:
    inputs = make_inputs(2, 35, 2, 16, 16, regime=None)
    qkv = torch.stack([inputs[name] for name in "qkv"], dim=2)
    q, k, v = qkv.unbind(2)
    got = kernels(q, k, v, inputs["beta"], None, None)
    expected = kernels(*(x.contiguous() for x in (q, k, v)), inputs["beta"], None, None)
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))


def test_uninitialised_memory_is_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = torch.Tensor.new_empty
    monkeypatch.setattr(torch.Tensor, "new_empty", lambda self, *size, **kw: plain(self, *size, **kw).fill_(math.nan))
    assert_equals_the_loop(make_inputs(1, 35, 1, 6, 20, regime="mixed"))


@pytest.mark.parametrize("regime", [None, "mixed"])
def test_vmap_of_gradients_matches_a_loop(regime: str | None) -> None:
    whole = make_inputs(2, 19, 1, 8, 4, regime=regime)
    cases = [{name: x[i : i + 1] for name, x in whole.items()} for i in range(2)]
    stacked = {name: torch.stack([case[name] for case in cases]) for name in whole}

    def loss(i: dict[str, Tensor]) -> Tensor:
        o, state = kernels(i["q"], i["k"], i["v"], i["beta"], i.get("g"), i["state"])
        return o.square().sum() + state.sum()

    together = torch.func.vmap(torch.func.grad(loss))(stacked)
    for i, case in enumerate(cases):
        for name, grad in torch.func.grad(loss)(case).items():
            torch.testing.assert_close(together[name][i], grad)


@pytest.mark.parametrize("regime", [None, "mixed"])
def test_a_compiled_graph_holds_one_operator(regime: str | None) -> None:
    inputs = make_inputs(1, 40, 1, 16, 16, regime=regime)
    compiled = torch.compile(kernels, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(results(compiled, inputs), results(kernels, inputs))


@pytest.mark.parametrize("regime", [None, *REGIMES])
@pytest.mark.parametrize("T", [pytest.param(T, marks=slow_if_interpreted) for T in (1, 63, 257)])
def test_half_precision(T: int, regime: str | None) -> None:
    assert_equals_the_loop(make_inputs(1, T, 2, 128, 128, regime=regime, dtype=torch.bfloat16), 1e-2)


@needs_gpu
@pytest.mark.parametrize("regime", [None, "mixed"])
@pytest.mark.parametrize("head", [1, 8, 16, 24])
def test_narrow_heads_in_half_precision(head: int, regime: str | None) -> None:
    """Tiles of 16 channels left their shared memory."""
    assert_equals_the_loop(make_inputs(2, 130, 2, head, head, regime=regime, dtype=torch.bfloat16), 1e-2)
