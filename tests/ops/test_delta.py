"""The delta rule: the chunked triangular form against the loop, in every decay regime, and against independent code."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from plait.core.errors import UserError
from plait.ops.delta import delta, delta_reference, delta_step, padded_width

Op = Callable[..., tuple[Tensor, Tensor]]

LENGTHS = [1, 2, 63, 64, 65, 257]

REGIMES: dict[str, Callable[[tuple[int, ...]], Tensor]] = {
    "weak": lambda shape: torch.full(shape, -1e-6),
    "strong": lambda shape: torch.full(shape, -13.8),
    "mixed": lambda shape: -torch.exp(torch.empty(shape).uniform_(math.log(1e-6), math.log(13.8))),
    "bursts": lambda shape: torch.where(torch.rand(shape) < 0.2, -13.8, -1e-2),
    "extreme": lambda shape: torch.where(torch.rand(shape) < 0.3, -100.0, 0.0),
}


def make_inputs(B: int, T: int, H: int, K: int, V: int, *, regime: str | None = "mixed") -> dict[str, Tensor]:
    torch.manual_seed(T + 10 * K)
    inputs = {
        "q": torch.randn(B, T, H, K),
        "k": F.normalize(torch.randn(B, T, H, K), dim=-1),
        "v": torch.randn(B, T, H, V),
        "beta": torch.rand(B, T, H),
        "state": torch.randn(B, H, K, V),
    }
    return inputs if regime is None else inputs | {"g": REGIMES[regime]((B, T, H))}


def call(op: Op, inputs: dict[str, Tensor], **options: object) -> tuple[Tensor, Tensor]:
    q, k, v, beta = (inputs[name] for name in ("q", "k", "v", "beta"))
    return op(q, k, v, beta, inputs.get("g"), scale=0.5, state=inputs.get("state"), **options)


def results(op: Op, inputs: dict[str, Tensor], dtype: torch.dtype, **options: object) -> dict[str, Tensor]:
    """Output, final state, and the gradient of every input for one fixed random weighting of both."""
    leaves = {name: x.to(dtype).requires_grad_() for name, x in inputs.items()}
    o, state = call(op, leaves, **options)
    torch.manual_seed(0)
    loss = (o * torch.randn(o.shape).to(dtype)).sum() + (state * torch.randn(state.shape).to(dtype)).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return {"o": o, "final state": state} | {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    """Errors are measured against the largest value of the same tensor."""
    for name, want in expected.items():
        error = (actual[name].double() - want.double()).abs().max().item()
        scale = max(want.abs().max().item(), 1e-30)
        assert error <= tolerance * scale, f"{name}: off by {error:.2e} where values reach {scale:.2e}"


def between(inputs: dict[str, Tensor], start: int, stop: int) -> dict[str, Tensor]:
    return {name: x if name == "state" else x[:, start:stop] for name, x in inputs.items()}


@pytest.mark.parametrize("regime", [None, *REGIMES])
@pytest.mark.parametrize("T", LENGTHS)
def test_fast_matches_reference(T: int, regime: str | None) -> None:
    inputs = make_inputs(2, T, 2, 5, 4, regime=regime)
    assert_close(results(delta, inputs, torch.float32), results(delta_reference, inputs, torch.float64))


@pytest.mark.parametrize("shape", [(1, 7, 3, 1, 6), (3, 33, 3, 6, 1), (1, 40, 1, 40, 3)])
@pytest.mark.parametrize("regime", [None, "mixed"])
def test_odd_shapes(shape: tuple[int, int, int, int, int], regime: str | None) -> None:
    inputs = make_inputs(*shape, regime=regime)
    assert_close(results(delta, inputs, torch.float32), results(delta_reference, inputs, torch.float64))


@pytest.mark.parametrize("regime", [None, "bursts"])
def test_keys_need_not_be_normalised(regime: str | None) -> None:
    inputs = make_inputs(2, 65, 2, 8, 4, regime=regime)
    inputs["k"] = 1.8 * inputs["k"] * torch.rand(2, 65, 2, 1)
    inputs["beta"] = 1.2 * inputs["beta"]
    assert_close(results(delta, inputs, torch.float32), results(delta_reference, inputs, torch.float64))


@pytest.mark.parametrize("chunk", [1, 2, 8, 64, 512])
@pytest.mark.parametrize("regime", [None, "mixed"])
def test_any_chunk_gives_the_same(chunk: int, regime: str | None) -> None:
    inputs = make_inputs(2, 65, 2, 4, 3, regime=regime)
    expected = results(delta_reference, inputs, torch.float64)
    assert_close(results(delta, inputs, torch.float64, chunk=chunk), expected, tolerance=1e-12)


def test_no_state_is_a_state_of_zeros() -> None:
    inputs = make_inputs(2, 20, 2, 4, 3)
    zeros = inputs | {"state": torch.zeros_like(inputs["state"])}
    del inputs["state"]
    for op in (delta, delta_reference):
        for without, given in zip(call(op, inputs), call(op, zeros), strict=True):
            torch.testing.assert_close(without, given, rtol=0, atol=0)


def test_a_full_correction_recalls_the_value_exactly() -> None:
    """β = 1 with a unit key overwrites what that key recalls, whatever was stored before."""
    inputs = make_inputs(2, 30, 2, 4, 3, regime=None)
    o, _ = delta(inputs["k"], inputs["k"], inputs["v"], torch.ones(2, 30, 2), state=inputs["state"])
    assert_close({"o": o}, {"o": inputs["v"]})


@pytest.mark.parametrize("regime", [None, "mixed"])
def test_steps_match_parallel(regime: str | None) -> None:
    inputs = make_inputs(2, 21, 3, 4, 5, regime=regime)
    state, outputs = inputs["state"], []
    for t in range(21):
        q, k, v, beta = (inputs[name][:, t] for name in ("q", "k", "v", "beta"))
        g = None if regime is None else inputs["g"][:, t]
        o, state = delta_step(q, k, v, beta, g, state, scale=0.5)
        outputs.append(o)
    o, final = call(delta, inputs)
    assert_close({"o": o, "state": final}, {"o": torch.stack(outputs, 1), "state": state})


@pytest.mark.parametrize("cut", [1, 16, 37])
def test_two_calls_match_one(cut: int) -> None:
    inputs = make_inputs(2, 50, 2, 4, 5)
    o_head, state = call(delta, between(inputs, 0, cut))
    o_tail, final = call(delta, between(inputs, cut, 50) | {"state": state})
    o, expected = call(delta, inputs)
    assert_close({"o": torch.cat((o_head, o_tail), 1), "state": final}, {"o": o, "state": expected})


def test_gradcheck() -> None:
    leaves = [x.double().requires_grad_() for x in make_inputs(1, 5, 2, 3, 2, regime="bursts").values()]
    gated = lambda q, k, v, beta, s, g: delta(q, k, v, beta, g, state=s, chunk=4)  # noqa: E731
    plain = lambda q, k, v, beta, s: delta(q, k, v, beta, state=s, chunk=4)  # noqa: E731
    assert torch.autograd.gradcheck(gated, leaves)
    assert torch.autograd.gradcheck(plain, leaves[:-1])


@pytest.mark.parametrize("regime", [None, "mixed"])
def test_vmap_of_gradients_matches_a_loop(regime: str | None) -> None:
    whole = make_inputs(3, 19, 2, 3, 4, regime=regime)
    cases = [{name: x[i : i + 1] for name, x in whole.items()} for i in range(3)]
    stacked = {name: torch.stack([case[name] for case in cases]) for name in whole}

    def loss(inputs: dict[str, Tensor]) -> Tensor:
        o, state = call(delta, inputs)
        return o.square().sum() + state.sum()

    together = torch.func.vmap(torch.func.grad(loss))(stacked)
    for i, case in enumerate(cases):
        assert_close({name: x[i] for name, x in together.items()}, torch.func.grad(loss)(case))


def test_chunk_must_be_a_power_of_two() -> None:
    with pytest.raises(UserError, match="chunk is 24"):
        call(delta, make_inputs(1, 8, 1, 2, 2), chunk=24)


def test_against_flash_linear_attention_plain(fla_naive: Callable[[str], ModuleType]) -> None:
    i = make_inputs(2, 37, 3, 4, 6, regime=None)
    q, k, v, beta = (i[name].transpose(1, 2) for name in ("q", "k", "v", "beta"))
    want, want_state = fla_naive("delta_rule/naive.py").delta_rule_recurrence(q, k, v, beta, i["state"])
    o, state = delta(i["q"], i["k"], i["v"], i["beta"], scale=4**-0.5, state=i["state"])
    assert_close({"o": o, "state": state}, {"o": want.transpose(1, 2), "state": want_state})


def test_against_flash_linear_attention_gated(fla_naive: Callable[[str], ModuleType]) -> None:
    i = make_inputs(2, 37, 3, 4, 6)
    want, want_state = fla_naive("gated_delta_rule/naive.py").naive_recurrent_gated_delta_rule(
        i["q"], i["k"], i["v"], i["beta"], i["g"], scale=0.3, initial_state=i["state"], output_final_state=True
    )
    o, state = delta(i["q"], i["k"], i["v"], i["beta"], i["g"], scale=0.3, state=i["state"])
    assert_close({"o": o, "state": state}, {"o": want, "state": want_state})


@pytest.mark.parametrize(("head", "padded"), [(1, 32), (8, 32), (16, 32), (32, 32), (33, 64), (96, 128)])
def test_narrow_heads_are_padded_on_a_gpu(head: int, padded: int) -> None:
    """Tiles of 16 channels are compiled for Hopper to accesses beyond their shared memory."""
    assert padded_width(head) == padded
