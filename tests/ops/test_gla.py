"""Gated linear attention: the chunked path against the loop, in every decay regime, and against independent code."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.ops.gla import gla, gla_reference, gla_step

LENGTHS = [1, 2, 63, 64, 65, 257]

# Log decays as functions of a shape (B, T, …). Decay 1 - 1e-6 is g = -1e-6; decay 1e-6 is g = -13.8.
REGIMES: dict[str, Callable[[tuple[int, ...]], Tensor]] = {
    "weak": lambda shape: torch.full(shape, -1e-6),
    "strong": lambda shape: torch.full(shape, -13.8),
    "mixed": lambda shape: -torch.exp(torch.empty(shape).uniform_(math.log(1e-6), math.log(13.8))),
    # One strong decay and then weak ones: where differences of running sums lose the weak ones' digits.
    "bursts": lambda shape: torch.where(torch.rand(shape) < 0.2, -13.8, -1e-2),
    # Beyond what a model should ask for, yet nothing may overflow.
    "extreme": lambda shape: torch.where(torch.rand(shape) < 0.3, -100.0, 0.0),
}


def make_inputs(
    B: int, T: int, H: int, K: int, V: int, *, regime: str = "mixed", per_head: bool = False, bonus: bool = False
) -> dict[str, Tensor]:
    torch.manual_seed(T + 10 * K)
    inputs = {
        "q": torch.randn(B, T, H, K),
        "k": torch.randn(B, T, H, K),
        "v": torch.randn(B, T, H, V),
        "g": REGIMES[regime]((B, T, H) if per_head else (B, T, H, K)),
        "state": torch.randn(B, H, K, V),
    }
    return inputs | ({"bonus": torch.randn(H, K)} if bonus else {})


def call(
    op: Callable[..., tuple[Tensor, Tensor]], inputs: dict[str, Tensor], **options: object
) -> tuple[Tensor, Tensor]:
    q, k, v, g = (inputs[name] for name in "qkvg")
    return op(q, k, v, g, scale=0.5, state=inputs.get("state"), bonus=inputs.get("bonus"), **options)


def results(
    op: Callable[..., tuple[Tensor, Tensor]], inputs: dict[str, Tensor], dtype: torch.dtype, **options: object
) -> dict[str, Tensor]:
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


@pytest.mark.parametrize("kind", ["vector", "per head", "vector+bonus", "per head+bonus"])
@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("T", LENGTHS)
def test_fast_matches_reference(T: int, regime: str, kind: str) -> None:
    inputs = make_inputs(2, T, 2, 5, 4, regime=regime, per_head="head" in kind, bonus="bonus" in kind)
    assert_close(results(gla, inputs, torch.float32), results(gla_reference, inputs, torch.float64))


@pytest.mark.parametrize("per_head", [False, True])
def test_weak_decay_over_a_long_sequence(per_head: bool) -> None:
    """The rounding of exp(-1e-6) is the same for every token: multiplied up, 4096 of them would cost 3e-5."""
    inputs = make_inputs(1, 4096, 1, 4, 3, regime="weak", per_head=per_head)
    got, want = call(gla, inputs), call(gla_reference, {name: x.double() for name, x in inputs.items()})
    assert_close(dict(zip("oS", got, strict=True)), dict(zip("oS", want, strict=True)))


@pytest.mark.parametrize("shape", [(1, 7, 3, 1, 6), (3, 33, 3, 6, 1), (1, 40, 1, 40, 3)])
@pytest.mark.parametrize("per_head", [False, True])
def test_odd_shapes(shape: tuple[int, int, int, int, int], per_head: bool) -> None:
    inputs = make_inputs(*shape, per_head=per_head)
    assert_close(results(gla, inputs, torch.float32), results(gla_reference, inputs, torch.float64))


@pytest.mark.parametrize("chunk", [1, 2, 8, 64, 512])
@pytest.mark.parametrize("per_head", [False, True])
def test_any_chunk_gives_the_same(chunk: int, per_head: bool) -> None:
    inputs = make_inputs(2, 65, 2, 4, 3, per_head=per_head)
    expected = results(gla_reference, inputs, torch.float64)
    assert_close(results(gla, inputs, torch.float64, chunk=chunk), expected, tolerance=1e-12)


def test_no_state_is_a_state_of_zeros() -> None:
    inputs = make_inputs(2, 20, 2, 4, 3)
    zeros = inputs | {"state": torch.zeros_like(inputs["state"])}
    del inputs["state"]
    for op in (gla, gla_reference):
        for without, given in zip(call(op, inputs), call(op, zeros), strict=True):
            torch.testing.assert_close(without, given, rtol=0, atol=0)


@pytest.mark.parametrize("bonus", [False, True])
@pytest.mark.parametrize("per_head", [False, True])
def test_steps_match_parallel(per_head: bool, bonus: bool) -> None:
    inputs = make_inputs(2, 21, 3, 4, 5, per_head=per_head, bonus=bonus)
    state, outputs = inputs["state"], []
    for t in range(21):
        q, k, v, g = (inputs[name][:, t] for name in "qkvg")
        o, state = gla_step(q, k, v, g, state, scale=0.5, bonus=inputs.get("bonus"))
        outputs.append(o)
    o, final = call(gla, inputs)
    assert_close({"o": o, "state": final}, {"o": torch.stack(outputs, 1), "state": state})


@pytest.mark.parametrize("cut", [1, 16, 37])
def test_two_calls_match_one(cut: int) -> None:
    inputs = make_inputs(2, 50, 2, 4, 5, bonus=True)
    head = inputs | {name: inputs[name][:, :cut] for name in "qkvg"}
    o_head, state = call(gla, head)
    tail = inputs | {name: inputs[name][:, cut:] for name in "qkvg"} | {"state": state}
    o_tail, final = call(gla, tail)
    o, expected = call(gla, inputs)
    assert_close({"o": torch.cat((o_head, o_tail), 1), "state": final}, {"o": o, "state": expected})


@pytest.mark.parametrize("per_head", [False, True])
def test_gradcheck(per_head: bool) -> None:
    inputs = make_inputs(1, 5, 2, 3, 2, per_head=per_head, bonus=True)
    leaves = [(-0.1 - x.abs() if name == "g" else x).double().requires_grad_() for name, x in inputs.items()]
    with_bonus = lambda q, k, v, g, s, u: gla(q, k, v, g, state=s, bonus=u, chunk=4)  # noqa: E731
    without = lambda q, k, v, g, s: gla(q, k, v, g, state=s, chunk=4)  # noqa: E731
    assert torch.autograd.gradcheck(with_bonus, leaves)
    assert torch.autograd.gradcheck(without, leaves[:-1])


@pytest.mark.parametrize("per_head", [False, True])
def test_vmap_of_gradients_matches_a_loop(per_head: bool) -> None:
    cases = [make_inputs(1, T, 2, 3, 4, per_head=per_head, bonus=True) for T in (19, 19, 19)]
    cases = [{name: x + 0.1 * i if name in "qkv" else x for name, x in case.items()} for i, case in enumerate(cases)]
    stacked = {name: torch.stack([case[name] for case in cases]) for name in cases[0]}

    def loss(inputs: dict[str, Tensor]) -> Tensor:
        o, state = call(gla, inputs)
        return o.square().sum() + state.sum()

    together = torch.func.vmap(torch.func.grad(loss))(stacked)
    for i, case in enumerate(cases):
        assert_close({name: x[i] for name, x in together.items()}, torch.func.grad(loss)(case))


@pytest.mark.parametrize("chunk", [0, -4, 24])
def test_chunk_must_be_a_power_of_two(chunk: int) -> None:
    with pytest.raises(UserError, match=f"chunk is {chunk}"):
        call(gla, make_inputs(1, 8, 1, 2, 2), chunk=chunk)


def test_against_flash_linear_attention_gla(fla_naive: Callable[[str], ModuleType]) -> None:
    naive = fla_naive("gla/naive.py")
    i = make_inputs(2, 37, 3, 4, 6)
    want, want_state = naive.naive_recurrent_gla(i["q"], i["k"], i["v"], i["g"], i["state"], output_final_state=True)
    o, state = gla(i["q"], i["k"], i["v"], i["g"], scale=4**-0.5, state=i["state"])
    assert_close({"o": o, "state": state}, {"o": want, "state": want_state})


def test_against_flash_linear_attention_scalar_decay(fla_naive: Callable[[str], ModuleType]) -> None:
    naive = fla_naive("simple_gla/naive.py")
    i = make_inputs(2, 37, 3, 4, 6, per_head=True)
    want, want_state = naive.naive_recurrent_simple_gla(
        i["q"], i["k"], i["v"], i["g"], scale=0.3, initial_state=i["state"]
    )
    o, state = gla(i["q"], i["k"], i["v"], i["g"], scale=0.3, state=i["state"])
    assert_close({"o": o, "state": state}, {"o": want, "state": want_state})


def test_against_flash_linear_attention_rwkv6(fla_naive: Callable[[str], ModuleType]) -> None:
    naive = fla_naive("rwkv6/recurrent_naive.py")
    i = make_inputs(2, 37, 3, 4, 6, bonus=True)
    q, k, v, g = (i[name].transpose(1, 2) for name in "qkvg")
    want, want_state = naive.naive_recurrent_rwkv6(
        q, k, v, g, i["bonus"], scale=0.3, initial_state=i["state"], output_final_state=True
    )
    o, state = gla(i["q"], i["k"], i["v"], i["g"], scale=0.3, state=i["state"], bonus=i["bonus"])
    assert_close({"o": o, "state": state}, {"o": want.transpose(1, 2), "state": want_state})


def test_against_flash_linear_attention_hgrn(fla_naive: Callable[[str], ModuleType]) -> None:
    """HGRN2's input gate is k = 1 - decay; with K = V = 1 and the value x it is the elementwise HGRN of (1-f)·x."""
    naive = fla_naive("hgrn/naive.py")
    torch.manual_seed(0)
    x, g = torch.randn(2, 37, 5), torch.nn.functional.logsigmoid(torch.randn(2, 37, 5))
    want, _ = naive.naive_recurrent_hgrn((1 - g.exp()) * x, g)
    ones = torch.ones_like(x)[..., None]
    o, _ = gla(ones, (1 - g.exp())[..., None], x[..., None], g[..., None])
    assert_close({"o": o[..., 0]}, {"o": want})
