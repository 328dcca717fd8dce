"""Products over many tokens are divided into parts, and remain the same products."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from plait.training import split_products
from plait.training.ensemble_plan import Plan, Replica
from plait.training.ensemble_step import record_gradients
from plait.training.split_products import parts_of, split_long_products

REPLICAS = [Replica(1e-3, 0.0, seed) for seed in range(3)]


@pytest.mark.parametrize(
    ("models", "tokens", "parts"),
    [(6, 16384, 4), (2, 131072, 16), (1, 131072, 32), (6, 4096, 2), (6, 2048, 1), (6, 3 * 4096 + 1, 1), (33, 2**20, 1)],
)
def test_how_many_parts(models, tokens, parts):
    assert parts_of(models, tokens) == parts


def gradient(dy_MNA: torch.Tensor, x_MNB: torch.Tensor) -> torch.Tensor:
    return dy_MNA.mT @ x_MNB


def test_a_split_product_is_the_product(monkeypatch):
    monkeypatch.setattr(split_products, "TOKENS", 8)
    dy, x = torch.randn(3, 96, 5, dtype=torch.float64), torch.randn(3, 96, 7, dtype=torch.float64)
    graph = make_fx(gradient, tracing_mode="fake")(dy, x)
    assert split_long_products(graph.graph) == 1
    graph.recompile()
    torch.testing.assert_close(graph(dy, x), gradient(dy, x))
    assert "[24, 12, 5]" in graph.code  # 3 models × 8 parts


def test_a_product_that_another_one_reads_is_split_too(monkeypatch):
    monkeypatch.setattr(split_products, "TOKENS", 8)
    k, v, q = (torch.randn(3, 96, width, dtype=torch.float64) for width in (5, 7, 5))

    def read(k: torch.Tensor, v: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        return torch.bmm(q, torch.bmm(k.mT, v))

    graph = make_fx(read, tracing_mode="fake")(k, v, q)
    assert split_long_products(graph.graph) == 1
    graph.recompile()
    torch.testing.assert_close(graph(k, v, q), read(k, v, q))


def test_parts_in_half_precision_are_summed_in_single(monkeypatch):
    monkeypatch.setattr(split_products, "TOKENS", 8)
    graph = make_fx(gradient, tracing_mode="fake")(*(torch.empty(3, 96, n, dtype=torch.bfloat16) for n in (5, 7)))
    assert split_long_products(graph.graph) == 1
    graph.recompile()
    assert "[1], dtype = torch.float32)" in graph.code
    assert "torch.bfloat16)" in graph.code


def test_products_over_other_dimensions_are_left_alone(monkeypatch):
    monkeypatch.setattr(split_products, "TOKENS", 8)
    x, weight = torch.randn(3, 96, 32), torch.randn(3, 5, 32)
    for product in (lambda a, b: a @ b.mT, lambda a, b: b @ a.mT):
        graph = make_fx(product, tracing_mode="fake")(x, weight)
        assert split_long_products(graph.graph) == 0


@pytest.mark.parametrize("body", ["attn", "gla"])
def test_the_gradient_of_an_ensemble_is_the_same(make_fleet, monkeypatch, body):
    fleet = make_fleet(REPLICAS, Plan(steps=10, batch=8), body)
    tokens, targets = fleet.batch(fleet._batch_rows(0))
    fleet.template(tokens[0, :1], targets[0, :1])
    whole = record_gradients(fleet._stepper._gradients, fleet.params, (tokens, targets))(fleet.params, tokens, targets)
    found = []
    monkeypatch.setattr(split_products, "TOKENS", 4)
    monkeypatch.setattr(
        "plait.training.ensemble_step.split_long_products", lambda graph: found.append(split_long_products(graph)) or 1
    )
    parts = record_gradients(fleet._stepper._gradients, fleet.params, (tokens, targets))(fleet.params, tokens, targets)
    assert found[0] >= 2
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-6)
