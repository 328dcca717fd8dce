"""The ops between the products (swiglu, rms_norm, rotary): fast = plain with gradients, under vmap, and by choice."""

from __future__ import annotations

import pytest
import torch

from plait.ops import elementwise
from plait.ops.elementwise import (
    rms_norm,
    rms_norm_reference,
    rotary_angles,
    rotate,
    rotate_reference,
    swiglu,
    swiglu_reference,
)
from plait.ops.paths import plain_ops, recorded_ops


def drawn(*shape, seed=0, dtype=torch.float64):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def angles(positions, x, theta=100.0):
    return rotary_angles(positions, x.shape[-1], theta, x.dtype)


CASES = {
    "swiglu": (swiglu, swiglu_reference, lambda t, dt: (drawn(3, t, 2 * 7, dtype=dt),)),
    "rms_norm": (
        lambda x, w: rms_norm(x, w, 1e-6),
        lambda x, w: rms_norm_reference(x, w, 1e-6),
        lambda t, dt: (drawn(3, t, 7, dtype=dt), drawn(7, seed=1, dtype=dt)),
    ),
    "rotary": (
        lambda x: rotate(x, *angles(3 + torch.arange(x.shape[-3]), x)),
        lambda x: rotate_reference(x, *angles(3 + torch.arange(x.shape[-3]), x)),
        lambda t, dt: (drawn(3, t, 5, 6, dtype=dt),),
    ),
}


def with_gradients(op, given):
    leaves = [x.clone().requires_grad_() for x in given]
    y = op(*leaves)
    return y, *torch.autograd.grad((y * drawn(*y.shape, seed=9, dtype=y.dtype)).sum(), leaves)


@pytest.mark.parametrize("tokens", [1, 2, 63, 64, 65, 257])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", CASES)
def test_fast_equals_plain_with_gradients(name, dtype, tokens):
    fast, plain, make = CASES[name]
    given = make(tokens, dtype)
    for ours, theirs in zip(with_gradients(fast, given), with_gradients(plain, given), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5 if dtype == torch.float32 else 1e-10)


@pytest.mark.parametrize("name", CASES)
def test_inputs_larger_than_a_block_are_cut_right(name):
    fast, plain, _ = CASES[name]
    wide = {
        "swiglu": (drawn(2, 900, 2 * 96),),
        "rms_norm": (drawn(2, 900, 160), drawn(160, seed=1)),
        "rotary": (drawn(9, 300, 8, 16),),
    }[name]
    for ours, theirs in zip(with_gradients(fast, wide), with_gradients(plain, wide), strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("name", CASES)
def test_stacked_members_equal_a_loop(name):
    fast, _, make = CASES[name]
    members = [tuple(x + i for x in make(5, torch.float64)) for i in range(3)]
    stacked = [torch.stack(parts) for parts in zip(*members, strict=True)]
    where = tuple(range(len(stacked)))

    def loss(*given):
        return fast(*given).square().sum()

    values = torch.func.vmap(torch.func.grad(loss, argnums=where))(*stacked)
    for i, member in enumerate(members):
        leaves = [x.clone().requires_grad_() for x in member]
        for ours, theirs in zip(values, torch.autograd.grad(loss(*leaves), leaves), strict=True):
            torch.testing.assert_close(ours[i], theirs)


@pytest.mark.parametrize("name", CASES)
def test_plain_ops_can_be_differentiated_twice(name):
    fast, _, make = CASES[name]
    given = tuple(x[:1, :3].clone() if x.dim() > 1 else x for x in make(3, torch.float64))
    leaves = [x.requires_grad_() for x in given]
    with plain_ops():
        assert torch.autograd.gradgradcheck(fast, leaves)


def test_without_plain_ops_a_second_derivative_is_refused():
    x = drawn(2, 6).requires_grad_()
    (first,) = torch.autograd.grad(swiglu(x).sum(), x, create_graph=True)
    with pytest.raises(NotImplementedError, match="plain_ops"):
        first.sum().backward()


@pytest.mark.parametrize("rows", [5, elementwise.SMALL_TABLE + 1])
def test_the_recorded_gradient_of_a_table_is_the_gradient(rows):
    """A small one by a product, a large one by torch's own; alone and stacked; most tokens the same."""
    stream = torch.Generator().manual_seed(0)
    table = torch.randn(2, rows, 3, generator=stream, dtype=torch.float64)
    tokens = torch.randint(rows, (2, 4, 7), generator=stream) * (torch.rand(2, 4, 7, generator=stream) < 0.4)
    weights = torch.randn(2, 4, 7, 3, generator=stream, dtype=torch.float64)

    def loss(table, tokens, weights):
        return (elementwise.embedding(tokens, table) * weights).sum()

    gradient = torch.func.vmap(torch.func.grad(loss))
    expected = gradient(table, tokens, weights)
    with recorded_ops():
        torch.testing.assert_close(gradient(table, tokens, weights), expected)
        small = "SmallEmbedding" in str(elementwise.embedding(tokens[0], table[0].requires_grad_()).grad_fn)
    assert small == (rows <= elementwise.SMALL_TABLE)
