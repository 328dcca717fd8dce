"""What a compiler is told of plait's operators is true, and they do not rely on what it may change.

A compiled graph allots nothing for what an operator returns: it reads that in the shape, strides and dtype which the
operator's fake promised, beyond its end where the promise was too large. And it may hand over tensors of other strides
than the recorded ones. Every operator that `test_kernels.py` runs is held to both, and stacked by vmap to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from interpreted import DEVICE
from kernel_cases import BF16, CASES, FP32, Case, normal, results
from torch import Tensor
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.aot_autograd import make_boxed_func
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

Call = tuple[Any, tuple[Any, ...], Any]  # operator, what it was given, what it returned


class Operators(TorchDispatchMode):
    """Calls of plait's operators."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_dispatch__(self, operator: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = operator(*args, **(kwargs or {}))
        if operator.namespace == "plait":
            self.calls.append((operator, args, found))
        return found


def tiled_attention_and_linear_cross_entropy(dtype: torch.dtype) -> Iterator[Case]:
    from plait.ops.linear_cross_entropy import chunked_linear_cross_entropy
    from plait.ops.paths import recorded_ops
    from plait.ops.tiled_attention import tiled_attention

    def attention(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor]:
        with recorded_ops():
            return (tiled_attention(q, k, v, None, None, scale=0.3, causal=True, window=0),)

    q, k, v = (normal(2, 70, heads, 12, dtype=dtype) for heads in (4, 2, 2))
    yield Case(attention, attention, {"q": q, "k": k, "v": v})
    targets = torch.tensor([2, 70, -100, 0, 5], device=DEVICE)

    def loss(hidden: Tensor, weight: Tensor, bias: Tensor) -> tuple[Tensor]:
        return (chunked_linear_cross_entropy(hidden, weight, targets, bias, chunk=2),)

    hidden = normal(5, 12, dtype=dtype)
    yield Case(loss, loss, {"hidden": hidden, "weight": normal(71, 12), "bias": normal(71)})


MAKERS = {make.__name__: make for make in (*CASES.values(), tiled_attention_and_linear_cross_entropy)}
WITHOUT_OPERATORS = {"cross_entropy", "one_token"}
NOT_STACKED = {"swiglu", "swiglu_backward", "split_rotated", "split_rotated_backward", "linear_cross_entropy"}


def calls_of(make: Callable[[torch.dtype], Iterator[Case]], dtype: torch.dtype) -> list[Call]:
    with Operators() as seen:
        for case in make(dtype):
            results(case.ours, case.inputs, case.gradients)
    return seen.calls


def layout(x: Tensor) -> tuple[Any, ...]:
    """Strides that lead anywhere: of dimensions with more than one element, in tensors that have some."""
    strides = [stride for size, stride in zip(x.shape, x.stride(), strict=True) if size > 1] if x.numel() else []
    return tuple(x.shape), strides, x.dtype


def reordered(x: Any) -> Any:
    """The same numbers with the dimensions in the reverse order in memory, and a gap behind every one of them."""
    if not isinstance(x, Tensor) or x.dim() == 0:
        return x
    room = x.detach().new_empty(*x.shape[::-1], 2)[..., 0]
    return room.permute(*reversed(range(x.dim()))).copy_(x)


def same(found: Any, wanted: Any) -> bool:
    pairs = zip(tree_leaves(found), tree_leaves(wanted), strict=True)
    return all(layout(a) == layout(b) and torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("name", sorted(set(MAKERS) - WITHOUT_OPERATORS))
def test_operators_return_what_their_fakes_promise(name: str) -> None:
    once: dict[str, Call] = {}
    for dtype in (FP32, BF16):
        for operator, args, found in calls_of(MAKERS[name], dtype):
            with FakeTensorMode(allow_non_fake_inputs=True) as mode:
                promised = operator(*tree_map(lambda x: mode.from_tensor(x) if isinstance(x, Tensor) else x, args))
            wanted = [layout(x) for x in tree_leaves(promised)]
            assert [layout(x) for x in tree_leaves(found)] == wanted, f"{operator} in {dtype}"
            once[operator._opname] = (operator, args, found)
    for short, (operator, args, found) in once.items():
        assert same(operator(*map(reordered, args)), found), f"{short} of tensors with other strides"
        if short not in NOT_STACKED:
            tensors = [x for x in args if isinstance(x, Tensor)]
            others = [x / 2 if x.is_floating_point() else x for x in tensors]
            axes = tuple(0 if isinstance(x, Tensor) else None for x in args)
            pairs = iter([torch.stack(pair) for pair in zip(tensors, others, strict=True)])
            stacked = operator_of(operator, axes)(*(next(pairs) if isinstance(x, Tensor) else x for x in args))
            assert same(tree_map(lambda x: x[0], stacked), found), f"{short} stacked"
    assert once


def operator_of(operator: Any, axes: tuple[int | None, ...]) -> Callable[..., Any]:
    return torch.vmap(lambda *args: operator(*args), in_dims=axes)


JOINED = sorted(set(MAKERS) - WITHOUT_OPERATORS - {"<lambda>", "one_token", "tiled_attention_and_linear_cross_entropy"})


@pytest.mark.parametrize("name", JOINED)
def test_a_compiled_graph_has_one_node_forward_and_one_backward(name: str) -> None:
    graphs: list[list[str]] = []

    def noted(graph: torch.fx.GraphModule, inputs: Any) -> Any:
        targets = [str(node.target) for node in graph.graph.nodes if node.op == "call_function"]
        graphs.append([target for target in targets if target.startswith("plait.")])
        return make_boxed_func(graph.forward)

    case = next(MAKERS[name](FP32))
    torch.compiler.reset()
    compiled = torch.compile(case.ours, backend=aot_autograd(fw_compiler=noted), fullgraph=True)
    found, wanted = (results(op, case.inputs, case.gradients) for op in (compiled, case.ours))
    ((forward,), (backward,)) = graphs
    assert backward == forward.replace(".default", "_backward.default")
    assert all(torch.equal(found[key], wanted[key]) for key in wanted)
