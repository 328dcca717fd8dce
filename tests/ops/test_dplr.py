"""Diagonal plus low rank: the chunked triangular form against the loop, in every decay regime, and independent code."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from plait.core.errors import UserError
from plait.ops.delta import delta
from plait.ops.dplr import dplr, dplr_reference, dplr_step

Op = Callable[..., tuple[Tensor, Tensor]]
LENGTHS = [1, 2, 63, 64, 65, 257]
REGIMES: dict[str, Callable[[tuple[int, ...]], Tensor]] = {
    "none": lambda shape: torch.zeros(shape),
    "weak": lambda shape: torch.full(shape, -1e-6),
    "strong": lambda shape: torch.full(shape, -13.8),
    "mixed": lambda shape: -torch.exp(torch.empty(shape).uniform_(math.log(1e-6), math.log(13.8))),
    "extreme": lambda shape: torch.where(torch.rand(shape) < 0.3, -100.0, 0.0),
}


def make_inputs(B: int, T: int, H: int, K: int, V: int, *, regime: str = "mixed") -> dict[str, Tensor]:
    """As in RWKV-7: removed at a key of length 1, by a share of each channel."""
    torch.manual_seed(T + 10 * K)
    key = F.normalize(torch.randn(B, T, H, K), dim=-1)
    return {
        "q": torch.randn(B, T, H, K),
        "k": torch.randn(B, T, H, K),
        "v": torch.randn(B, T, H, V),
        "a": -key,
        "b": key * torch.rand(B, T, H, K),
        "g": REGIMES[regime]((B, T, H, K)),
        "state": torch.randn(B, H, K, V),
    }


def call(op: Op, inputs: dict[str, Tensor], **options: object) -> tuple[Tensor, Tensor]:
    return op(*(inputs[name] for name in "qkvabg"), scale=0.5, state=inputs.get("state"), **options)


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


@pytest.mark.parametrize("regime", REGIMES)
@pytest.mark.parametrize("T", LENGTHS)
def test_fast_matches_reference(T: int, regime: str) -> None:
    inputs = make_inputs(2, T, 2, 5, 4, regime=regime)
    assert_close(results(dplr, inputs, torch.float32), results(dplr_reference, inputs, torch.float64))


@pytest.mark.parametrize("shape", [(1, 7, 3, 1, 6), (3, 33, 3, 6, 1), (1, 40, 1, 40, 3)])
def test_odd_shapes(shape: tuple[int, int, int, int, int]) -> None:
    inputs = make_inputs(*shape)
    assert_close(results(dplr, inputs, torch.float32), results(dplr_reference, inputs, torch.float64))


@pytest.mark.parametrize("chunk", [1, 2, 8, 64, 512])
def test_any_chunk_gives_the_same(chunk: int) -> None:
    inputs = make_inputs(2, 65, 2, 4, 3)
    expected = results(dplr_reference, inputs, torch.float64)
    assert_close(results(dplr, inputs, torch.float64, chunk=chunk), expected, tolerance=1e-12)


def test_the_reference_is_the_equation() -> None:
    """One token with numbers small enough to work out by hand, K = 2 and V = 1."""
    q, k, a, b = (torch.tensor([[row]]) for row in ([1.0, 1.0], [0.0, 3.0], [1.0, 0.0], [0.0, -1.0]))
    state = torch.tensor([[[[2.0], [4.0]]]])
    o, new = dplr_step(q, k, torch.tensor([[[5.0]]]), a, b, torch.tensor([[[math.log(0.5), 0.0]]]), state)
    # decayed: 1 and 4; read 2, written with -1 on the second row; 3 · 5 on the second row
    torch.testing.assert_close(new, torch.tensor([[[[1.0], [17.0]]]]))
    torch.testing.assert_close(o, torch.tensor([[[18.0]]]))


def test_with_one_decay_per_head_it_is_the_gated_delta_rule() -> None:
    i = make_inputs(2, 50, 2, 4, 5)
    key, beta, g = -i["a"], torch.rand(2, 50, 2, 1), i["g"][..., :1]
    ours = dplr(i["q"], beta * key, i["v"], g.exp() * key, -beta * key, g.expand_as(key).contiguous(), state=i["state"])
    theirs = delta(i["q"], key, i["v"], beta[..., 0], g[..., 0], state=i["state"])
    for mine, want in zip(ours, theirs, strict=True):
        assert_close({"": mine}, {"": want})


@pytest.mark.parametrize("cut", [1, 16, 37])
def test_two_calls_match_one(cut: int) -> None:
    inputs = make_inputs(2, 50, 2, 4, 5)
    parts = [{n: x if n == "state" else x[:, s] for n, x in inputs.items()} for s in (slice(0, cut), slice(cut, 50))]
    o_head, state = call(dplr, parts[0])
    o_tail, final = call(dplr, parts[1] | {"state": state})
    o, expected = call(dplr, inputs)
    assert_close({"o": torch.cat((o_head, o_tail), 1), "state": final}, {"o": o, "state": expected})


def test_gradcheck() -> None:
    leaves = [x.double().requires_grad_() for x in make_inputs(1, 5, 2, 3, 2).values()]
    assert torch.autograd.gradcheck(lambda *x: dplr(*x[:6], state=x[6], chunk=4), leaves)


def test_vmap_of_gradients_matches_a_loop() -> None:
    whole = make_inputs(3, 19, 2, 3, 4)
    cases = [{name: x[i : i + 1] for name, x in whole.items()} for i in range(3)]
    stacked = {name: torch.stack([case[name] for case in cases]) for name in whole}

    def loss(inputs: dict[str, Tensor]) -> Tensor:
        o, state = call(dplr, inputs)
        return o.square().sum() + state.sum()

    together = torch.func.vmap(torch.func.grad(loss))(stacked)
    for i, case in enumerate(cases):
        assert_close({name: x[i] for name, x in together.items()}, torch.func.grad(loss)(case))


def test_chunk_must_be_a_power_of_two() -> None:
    with pytest.raises(UserError, match="chunk is 24"):
        call(dplr, make_inputs(1, 8, 1, 2, 2), chunk=24)


def test_against_flash_linear_attention(fla_naive: Callable[[str], ModuleType]) -> None:
    i = make_inputs(2, 37, 3, 4, 6)
    want, want_state = fla_naive("generalized_delta_rule/dplr/naive.py").dplr_recurrence(
        *(i[name].transpose(1, 2) for name in "qkvabg"), initial_state=i["state"]
    )
    o, state = dplr(*(i[name] for name in "qkvabg"), scale=4**-0.5, state=i["state"])
    assert_close({"o": o, "state": state}, {"o": want.transpose(1, 2), "state": want_state})


def test_against_flash_linear_attentions_kimi_delta_attention(fla_naive: Callable[[str], ModuleType]) -> None:
    i = make_inputs(2, 37, 3, 4, 6)
    key, beta = -i["a"], torch.rand(2, 37, 3)
    want, want_state = fla_naive("kda/naive.py").naive_recurrent_kda(
        i["q"], key, i["v"], i["g"], beta, scale=0.3, initial_state=i["state"], output_final_state=True
    )
    strength = beta[..., None]
    o, state = dplr(
        i["q"], strength * key, i["v"], i["g"].exp() * key, -strength * key, i["g"], scale=0.3, state=i["state"]
    )
    assert_close({"o": o, "state": state}, {"o": want, "state": want_state})


def test_channel_writes_against_flash_linear_attention(fla_naive: Callable[[str], ModuleType]) -> None:
    torch.manual_seed(0)
    q, v, w = (torch.rand(2, 30, 3, 4) for _ in range(3))
    k, e = F.normalize(torch.randn(2, 30, 3, 4), dim=-1), torch.rand(2, 30, 3, 4)
    g = -torch.rand(2, 30, 3, 4)
    want, _ = fla_naive("gdn2/naive.py").naive_recurrent_gdn2(q, k, v, g, e, w, scale=0.5)
    o, _ = dplr(q, k, w * v, g.exp() * e * k, -k, g, scale=0.5)
    torch.testing.assert_close(o, want, rtol=1e-4, atol=1e-5)
