"""A recorded gradient is the gradient, and holds kernels as operators."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch._dynamo
from torch.utils._python_dispatch import TorchDispatchMode

from plait.ops.paths import in_graph, plain_wanted, recorded_ops
from plait.training.ensemble_plan import Plan, Replica
from plait.training.ensemble_step import record_gradients

REPLICAS = [Replica(1e-3, 0.0, seed) for seed in range(3)]


@pytest.mark.parametrize("body", ["attn", "hyena", "gla", "mamba"])
def test_a_recorded_gradient_is_the_gradient(make_fleet, body):
    fleet = make_fleet(REPLICAS, Plan(steps=10, batch=8), body)
    tokens, targets = fleet.batch(fleet._batch_rows(0))
    gradients = fleet._stepper._gradients
    fleet.template(tokens[0, :1], targets[0, :1])
    replayed = record_gradients(gradients, fleet.params, (tokens, targets))
    for name in fleet.params:  # other values than those it was recorded with
        fleet.params[name] = fleet.params[name] + 0.01 * torch.randn_like(fleet.params[name])
    expected, losses = gradients(fleet.params, tokens, targets)
    found, found_losses = replayed(fleet.params, tokens, targets)
    torch.testing.assert_close(found_losses, losses, rtol=1e-5, atol=1e-6)
    for name, grad in expected.items():
        torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6)


def test_a_recording_leaves_nothing_of_its_own_in_the_model(make_fleet):
    """It runs on tensors without values; angles of positions that it was the first to need must not be kept."""
    untouched, fleet = (make_fleet(REPLICAS, Plan(steps=10, batch=8), "attn") for _ in range(2))
    tokens, targets = fleet.batch(fleet._batch_rows(0))
    record_gradients(fleet._stepper._gradients, fleet.params, (tokens, targets))
    for expected_M, found_M in zip(untouched.score("validation"), fleet.score("validation"), strict=True):
        assert found_M.tolist() == expected_M.tolist()


class Calls(TorchDispatchMode):
    """Remembers our own operators and the first size of what they are given."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.namespace == "plait":
            self.seen.append((func.name(), len(args[0])))
        return func(*args, **(kwargs or {}))


def test_operators_run_once_a_layer_with_members_folded_into_their_batch(make_fleet, monkeypatch):
    """What a GPU's kernels rely on, shown with an operator that a CPU has, too."""
    monkeypatch.setattr("plait.ops.attention.LONGEST_PLAIN", 0)
    fleet = make_fleet(REPLICAS, Plan(steps=10, batch=8), "attn")
    tokens, targets = fleet.batch(fleet._batch_rows(0))
    fleet.template(tokens[0, :1], targets[0, :1])
    replayed = record_gradients(fleet._stepper._gradients, fleet.params, (tokens, targets))
    with Calls() as calls:
        replayed(fleet.params, tokens, targets)
    forward, backward = "plait::tiled_attention", "plait::tiled_attention_backward"
    assert calls.seen == [(forward, 3 * 8)] * 2 + [(backward, 3 * 8)] * 2


def test_ops_take_their_plain_form_unless_their_kernel_is_an_operator():
    assert not in_graph()
    with recorded_ops():
        assert in_graph()
        assert plain_wanted()
    assert not plain_wanted()


def test_a_process_compiles_the_steps_of_any_number_of_ensembles(make_fleet, monkeypatch):
    """Torch gives up on a function that it has compiled for more than a few models."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    with torch._dynamo.config.patch(recompile_limit=2):
        for seed in range(4):
            fleet = make_fleet([Replica(1e-3, 0.0, seed)], Plan(steps=10, batch=8), "attn")
            rows = fleet._batch_rows(0)
            advance = fleet._stepper.prepared(rows)
            first, second = (advance(*fleet.batch(rows)) for _ in range(2))
            assert (second < first).all()
