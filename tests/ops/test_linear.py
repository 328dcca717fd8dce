"""Linear attention: the chunked path against the loop, the normaliser, the features, and independent code."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.ops.gla import gla
from plait.ops.linear import (
    FEATURE_MAPS,
    feature_map,
    linear_attention,
    linear_attention_reference,
    linear_attention_step,
)

Op = Callable[..., tuple[Tensor, tuple[Tensor, ...]]]

LENGTHS = [1, 2, 63, 64, 65, 257]


def make_inputs(B: int, T: int, H: int, K: int, V: int, *, normalize: bool) -> dict[str, Tensor]:
    """Features as elu + 1 makes them; a state as a few earlier tokens would have left it."""
    torch.manual_seed(T + 10 * K)
    features = feature_map("elu1")
    inputs = {
        "q": features(torch.randn(B, T, H, K)),
        "k": features(torch.randn(B, T, H, K)),
        "v": torch.randn(B, T, H, V),
        "S": torch.randn(B, H, K, V),
    }
    return inputs | ({"z": 3 * torch.rand(B, H, K)} if normalize else {})


def call(op: Op, inputs: dict[str, Tensor], **options: object) -> dict[str, Tensor]:
    state = tuple(inputs[name] for name in ("S", "z") if name in inputs)
    normalize = "z" in inputs
    o, state = op(inputs["q"], inputs["k"], inputs["v"], scale=0.5, normalize=normalize, state=state, **options)
    assert len(state) == 1 + normalize
    return {"o": o} | dict(zip(("S", "z"), state, strict=False))


def results(op: Op, inputs: dict[str, Tensor], dtype: torch.dtype, **options: object) -> dict[str, Tensor]:
    """Output, final state, and the gradient of every input for one fixed random weighting of all of them."""
    leaves = {name: x.to(dtype).requires_grad_() for name, x in inputs.items()}
    out = call(op, leaves, **options)
    torch.manual_seed(0)
    loss = torch.stack([(x * torch.randn(x.shape).to(dtype)).sum() for x in out.values()]).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    return out | {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}


def assert_close(actual: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 1e-5) -> None:
    """Errors are measured against the largest value of the same tensor."""
    assert actual.keys() == expected.keys()
    for name, want in expected.items():
        error = (actual[name].double() - want.double()).abs().max().item()
        scale = want.abs().max().item()
        assert error <= tolerance * scale, f"{name}: off by {error:.2e} where values reach {scale:.2e}"


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("T", LENGTHS)
def test_fast_matches_reference(T: int, normalize: bool) -> None:
    inputs = make_inputs(2, T, 2, 5, 4, normalize=normalize)
    assert_close(
        results(linear_attention, inputs, torch.float32), results(linear_attention_reference, inputs, torch.float64)
    )


@pytest.mark.parametrize("shape", [(1, 7, 3, 1, 6), (3, 33, 3, 6, 1), (1, 40, 1, 40, 3)])
@pytest.mark.parametrize("normalize", [False, True])
def test_odd_shapes(shape: tuple[int, int, int, int, int], normalize: bool) -> None:
    """In float64: with K = 1 the normalised query cancels, so that its gradient is rounding error alone in float32."""
    inputs = make_inputs(*shape, normalize=normalize)
    expected = results(linear_attention_reference, inputs, torch.float64)
    assert_close(results(linear_attention, inputs, torch.float64), expected, tolerance=1e-9)


@pytest.mark.parametrize("chunk", [1, 2, 8, 64, 512])
def test_any_chunk_gives_the_same(chunk: int) -> None:
    inputs = make_inputs(2, 65, 2, 4, 3, normalize=True)
    expected = results(linear_attention_reference, inputs, torch.float64)
    assert_close(results(linear_attention, inputs, torch.float64, chunk=chunk), expected, tolerance=1e-12)


@pytest.mark.parametrize("normalize", [False, True])
def test_no_state_is_a_state_of_zeros(normalize: bool) -> None:
    inputs = make_inputs(2, 40, 2, 4, 3, normalize=normalize)
    zeros = inputs | {name: torch.zeros_like(inputs[name]) for name in ("S", "z") if name in inputs}
    for op in (linear_attention, linear_attention_reference):
        o, state = op(inputs["q"], inputs["k"], inputs["v"], scale=0.5, normalize=normalize)
        assert_close({"o": o} | dict(zip(("S", "z"), state, strict=False)), call(op, zeros), tolerance=0)


def test_without_decay_it_is_gated_linear_attention() -> None:
    inputs = make_inputs(2, 70, 2, 4, 3, normalize=False)
    o, S = gla(inputs["q"], inputs["k"], inputs["v"], torch.zeros(2, 70, 2), scale=0.5, state=inputs["S"])
    assert_close(call(linear_attention, inputs), {"o": o, "S": S})


def test_normalised_output_is_a_weighted_mean() -> None:
    inputs = make_inputs(2, 40, 2, 4, 3, normalize=True)
    o, _ = linear_attention(inputs["q"], inputs["k"], torch.full((2, 40, 2, 3), 7.0), normalize=True)
    assert_close({"o": o}, {"o": torch.full_like(o, 7.0)})


def test_a_query_that_meets_nothing_reads_zero() -> None:
    inputs = make_inputs(1, 5, 1, 4, 3, normalize=True)
    o, _ = linear_attention(torch.zeros_like(inputs["q"]), inputs["k"], inputs["v"], normalize=True)
    assert o.abs().max() == 0


@pytest.mark.parametrize("normalize", [False, True])
def test_steps_match_parallel(normalize: bool) -> None:
    inputs = make_inputs(2, 37, 3, 4, 5, normalize=normalize)
    state, outputs = tuple(inputs[name] for name in ("S", "z") if name in inputs), []
    for t in range(37):
        q, k, v = (inputs[name][:, t] for name in "qkv")
        o, state = linear_attention_step(q, k, v, state, scale=0.5, normalize=normalize)
        outputs.append(o)
    expected = {"o": torch.stack(outputs, 1)} | dict(zip(("S", "z"), state, strict=False))
    assert_close(call(linear_attention, inputs), expected)


@pytest.mark.parametrize("cut", [1, 32, 37])
def test_two_calls_match_one(cut: int) -> None:
    inputs = make_inputs(2, 50, 2, 4, 5, normalize=True)
    head = call(linear_attention, inputs | {name: inputs[name][:, :cut] for name in "qkv"})
    tail = call(linear_attention, head | {name: inputs[name][:, cut:] for name in "qkv"})
    assert_close(tail | {"o": torch.cat((head["o"], tail["o"]), 1)}, call(linear_attention, inputs))


@pytest.mark.parametrize("normalize", [False, True])
def test_gradcheck(normalize: bool) -> None:
    inputs = make_inputs(1, 5, 2, 3, 2, normalize=normalize)
    leaves = [x.double().requires_grad_() for x in inputs.values()]
    op = lambda *xs: tuple(call(linear_attention, dict(zip(inputs, xs, strict=True)), chunk=4).values())  # noqa: E731
    assert torch.autograd.gradcheck(op, leaves)


def test_vmap_of_gradients_matches_a_loop() -> None:
    whole = make_inputs(3, 37, 2, 3, 4, normalize=True)
    cases = [{name: x[i : i + 1] for name, x in whole.items()} for i in range(3)]
    stacked = {name: torch.stack([case[name] for case in cases]) for name in whole}

    def loss(inputs: dict[str, Tensor]) -> Tensor:
        out = call(linear_attention, inputs)
        return out["o"].square().sum() + out["S"].sum() + out["z"].sum()

    together = torch.func.vmap(torch.func.grad(loss))(stacked)
    for i, case in enumerate(cases):
        assert_close({name: x[i] for name, x in together.items()}, torch.func.grad(loss)(case))


def test_compiles_without_graph_breaks() -> None:
    inputs = make_inputs(1, 20, 2, 3, 4, normalize=True)
    compiled = torch.compile(linear_attention, backend="aot_eager", fullgraph=True)
    assert_close(results(compiled, inputs, torch.float32), results(linear_attention, inputs, torch.float32))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("identity", [-1.0, 0.0, 2.0]),
        ("elu1", [0.36787944, 1.0, 3.0]),
        ("relu", [0.0, 0.0, 2.0]),
        ("squared_relu", [0.0, 0.0, 4.0]),
        ("softmax", [0.04201007, 0.11419520, 0.84379473]),
    ],
)
def test_feature_maps(name: str, expected: list[float]) -> None:
    torch.testing.assert_close(feature_map(name)(torch.tensor([-1.0, 0.0, 2.0])), torch.tensor(expected))


def test_every_feature_map_keeps_the_shape() -> None:
    x = torch.randn(2, 3, 4, 5)
    assert {feature_map(name)(x).shape for name in FEATURE_MAPS} == {x.shape}


def test_unknown_feature_map_suggests_the_nearest() -> None:
    with pytest.raises(UserError, match=r"'sofmax'.*Did you mean 'softmax'.*identity"):
        feature_map("sofmax")


@pytest.mark.parametrize("normalize", [False, True])
def test_against_flash_linear_attention(fla_naive: Callable[[str], ModuleType], normalize: bool) -> None:
    i = make_inputs(2, 37, 3, 4, 6, normalize=normalize)
    want, _ = fla_naive("linear_attn/naive.py").naive_recurrent_linear_attn(
        i["q"], i["k"], i["v"], scale=0.5, normalize=normalize
    )
    o, _ = linear_attention(i["q"], i["k"], i["v"], scale=0.5, normalize=normalize)
    assert_close({"o": o}, {"o": want})
