"""The output layer and its loss in one operator: values and gradients are those of the definition, in any shape."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from plait.ops import linear_cross_entropy as module
from plait.ops.linear_cross_entropy import (
    IGNORE,
    chunked_linear_cross_entropy,
    linear_cross_entropy_path,
    linear_cross_entropy_reference,
)
from plait.ops.paths import plain_ops

Given = tuple[Tensor, Tensor, Tensor, Tensor | None]


def draw(
    n: int, d: int, v: int, *, bias: bool = False, masked: float = 0.3, dtype: torch.dtype = torch.float64
) -> Given:
    stream = torch.Generator().manual_seed(n + d + v)
    hidden, weight = (torch.randn(size, generator=stream, dtype=dtype) for size in ((n, d), (v, d)))
    targets = torch.randint(v, (n,), generator=stream)
    targets[torch.rand(n, generator=stream) < masked] = IGNORE
    targets[0] = v - 1
    given = torch.randn(v, generator=stream, dtype=dtype) if bias else None
    return hidden, weight, targets, given


def with_gradients(loss: Tensor, leaves: list[Tensor]) -> list[Tensor]:
    return [loss.detach(), *torch.autograd.grad(3 * loss, leaves)]


def leaves_of(given: Given) -> list[Tensor]:
    return [x.requires_grad_() for x in (given[0], given[1], given[3]) if x is not None]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize(("n", "d", "v", "chunk"), [(1, 1, 1, 0), (7, 5, 13, 3), (63, 16, 101, 16), (64, 8, 257, 64)])
def test_values_and_gradients_are_those_of_the_definition(n: int, d: int, v: int, chunk: int, bias: bool) -> None:
    given = draw(n, d, v, bias=bias)
    leaves = leaves_of(given)
    ours = with_gradients(chunked_linear_cross_entropy(*given, chunk=chunk), leaves)
    theirs = with_gradients(linear_cross_entropy_reference(*given), leaves)
    for mine, right in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-11, atol=1e-13)


def test_single_precision_with_large_logits_stays_as_close_as_the_plain_form() -> None:
    given = draw(50, 24, 301, dtype=torch.float32)
    hidden, weight = 30 * given[0], given[1]  # logits of a few hundred: exponentials overflow unless shifted
    exact = (hidden.double().requires_grad_(), weight.double().requires_grad_(), given[2], None)
    right = with_gradients(linear_cross_entropy_reference(*exact), [exact[0], exact[1]])
    single = (hidden.requires_grad_(), weight.requires_grad_(), given[2], None)
    ours = with_gradients(chunked_linear_cross_entropy(*single, chunk=16), [single[0], single[1]])
    for mine, wanted in zip(ours, right, strict=True):
        assert float((mine.double() - wanted).norm() / wanted.norm()) < 1e-5


def test_a_tied_matrix_gets_both_gradients() -> None:
    _, weight, targets, _ = draw(20, 6, 11)
    weight.requires_grad_()
    tokens = torch.arange(20) % 11
    found = [
        torch.autograd.grad(loss(torch.tanh(weight[tokens]), weight, targets), weight)[0]
        for loss in (chunked_linear_cross_entropy, linear_cross_entropy_reference)
    ]
    torch.testing.assert_close(*found, rtol=1e-11, atol=1e-13)


def test_without_gradients_only_the_loss_is_computed() -> None:
    given = draw(20, 6, 11)
    leaves_of(given)
    with torch.no_grad():
        loss, _, *gradients = module._chunked(*given, 0, False)
        torch.testing.assert_close(loss, linear_cross_entropy_reference(*given))
        assert all(not gradient.numel() for gradient in gradients)
        assert not chunked_linear_cross_entropy(*given).requires_grad


def test_a_batch_without_a_scored_token_has_no_mean() -> None:
    hidden, weight, targets, _ = draw(4, 3, 5)
    assert chunked_linear_cross_entropy(hidden, weight, torch.full_like(targets, IGNORE)).isnan()


def test_it_is_one_node_of_a_compiled_graph() -> None:
    given = draw(12, 4, 9, bias=True)
    leaves = leaves_of(given)
    torch._dynamo.reset()
    compiled = torch.compile(chunked_linear_cross_entropy, fullgraph=True, backend="aot_eager")
    ours, eager = (with_gradients(loss(*given), leaves) for loss in (compiled, chunked_linear_cross_entropy))
    for mine, right in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, right)


def test_torch_finds_nothing_wrong_with_the_operator() -> None:
    hidden, weight, targets, bias = draw(6, 3, 5, bias=True)
    for x in leaves_of((hidden, weight, targets, bias)):
        assert x.requires_grad
    torch.library.opcheck(module._chunked, (hidden, weight, targets, bias, 4, True))


def test_few_logits_stacked_members_and_second_derivatives_take_the_plain_form(monkeypatch: pytest.MonkeyPatch) -> None:
    hidden, weight, targets, _ = draw(8, 3, 5)
    assert linear_cross_entropy_path(hidden, weight) == "plain"
    monkeypatch.setattr(module, "WORTHWHILE_ON_CPU", 40)
    assert linear_cross_entropy_path(hidden, weight) == "chunked"
    with plain_ops():
        assert linear_cross_entropy_path(hidden, weight) == "plain"
    stacked = torch.stack([hidden, 2 * hidden])
    found = torch.func.vmap(lambda h: module.linear_cross_entropy(h, weight, targets))(stacked)
    torch.testing.assert_close(found[1], linear_cross_entropy_reference(2 * hidden, weight, targets))
