"""Gradients of stacked matrices, split along tokens.

The gradient of a small matrix is a product over all tokens, dW = Σ_n dy_n x_nᵀ: few numbers, each a sum of tens of
thousands of terms. A batched product gives a few programs all the work and leaves most of a GPU idle. Divided into
parts that are summed afterwards in fp32, it is 1.4 times as fast for six models of width 128 and 131,072 tokens, and
2.3 times for two (benchmarks/results/2026-11-18-h200-probe-full.md).

Letters: M stacked models, N tokens, P parts; A, B rows and columns of a matrix.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import fx

aten = torch.ops.aten
#: Programs of a product: models × parts.
PROGRAMS = 32
#: Tokens of a part: fewer are not worth another pass over the parts.
TOKENS = 2048


def split_long_products(graph: fx.Graph) -> int:
    """Rewrite batched products xᵀ y over many tokens of a traced graph, in place; returns how many."""
    split = 0
    for node in graph.find_nodes(op="call_function", target=aten.bmm.default):
        x_MAN, y_MNB = node.args
        (M, A, N), B = x_MAN.meta["val"].shape, y_MNB.meta["val"].shape[2]
        parts = parts_of(M, N)
        dtype = node.meta["val"].dtype
        dense = x_MAN.meta["val"].mT.is_contiguous() and y_MNB.meta["val"].is_contiguous()
        if parts == 1 or not dense:
            continue
        with graph.inserting_before(node):
            x_MNA = graph.call_function(aten.permute.default, (x_MAN, [0, 2, 1]))
            x = graph.call_function(aten.reshape.default, (x_MNA, [M * parts, N // parts, A]))
            y = graph.call_function(aten.reshape.default, (y_MNB, [M * parts, N // parts, B]))
            turned = graph.call_function(aten.permute.default, (x, [0, 2, 1]))
            products = graph.call_function(aten.bmm.default, (turned, y))
            apart = graph.call_function(aten.reshape.default, (products, [M, parts, A, B]))
            exact: dict[str, Any] = {"dtype": torch.promote_types(dtype, torch.float32)}
            whole = graph.call_function(aten.sum.dim_IntList, (apart, [1]), exact)
            rounded = graph.call_function(aten.to.dtype, (whole, dtype))
        rounded.meta = node.meta  # another product may read it
        node.replace_all_uses_with(rounded)
        graph.erase_node(node)
        split += 1
    return split


def parts_of(models: int, tokens: int) -> int:
    """A power of two that divides the tokens."""
    parts = 1
    while 2 * parts * models <= PROGRAMS and tokens % (2 * parts) == 0 and tokens // (2 * parts) >= TOKENS:
        parts *= 2
    return parts
