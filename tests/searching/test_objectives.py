"""Objectives: every name of the table is one, with its direction; predicted ones need a predictor."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from plait.algorithms.objectives import Batch, Evaluator, Objective, Predicted, ProxyObjective, exact
from plait.algorithms.proxies import PROXIES
from plait.core.errors import UserError
from plait.space import objective_table as table
from plait.space.space import COLUMNS, Space
from plait.space.table import load_space

CHANNELS = ("moe[experts=4,active=1]", "moe[experts=8,active=1]", "mlp[inner=512]")
EXACT = ("decoder_params", "total_params", "active_params", "flops", "fixed_state", "kv_cache")


def test_every_name_leads_to_an_objective() -> None:
    assert {name: table.load(name).__mro__[-3] for name in table.names()} == dict.fromkeys(table.names(), Objective)
    assert {name for name in table.OBJECTIVES if table.OBJECTIVES.entry(name).where.endswith("ProxyObjective")} == set(
        PROXIES
    )
    with pytest.raises(UserError, match="Did you mean 'flops'"):
        table.load("flop")


@pytest.mark.parametrize("name", EXACT)
def test_exact_objectives_are_columns(name: str, small: Space) -> None:
    assert name in COLUMNS
    genes = small.sample(np.random.default_rng(0), 20)
    columns = small.columns(genes)
    (objective,) = exact([name])
    assert objective.columns(Batch(small, genes, columns))[name] is columns[name]
    assert objective.maximise == (name == "decoder_params")


def test_idle_experts_are_no_active_decoder_parameters() -> None:
    space = load_space("hybrid")
    rows = [space.from_spec(f"d=128 vocab=50257 tie=true | attn[heads=2] {c} attn[heads=2]") for c in CHANNELS]
    genes = np.stack(rows)
    (objective,) = exact(["active_decoder_params"])
    assert objective.maximise
    columns = space.columns(genes)
    active = objective.columns(Batch(space, genes, columns))["active_decoder_params"]
    four, eight, dense = active.tolist()
    assert eight - four == 4 * 128  # the router's scores for four experts more
    assert columns["decoder_params"][1] - columns["decoder_params"][0] > 10 * (eight - four)
    assert dense == columns["decoder_params"][2]


def test_a_direction_may_be_given() -> None:
    assert [o.maximise for o in exact(["min:decoder_params", "max:flops", "flops"])] == [False, True, False]
    with pytest.raises(UserError, match="min:NAME or max:NAME"):
        exact(["least:flops"])
    with pytest.raises(UserError, match="not known from the architecture alone"):
        exact(["latency"])


def test_costs_are_to_be_minimised(small: Space) -> None:
    genes = small.sample(np.random.default_rng(0), 20)
    evaluator = Evaluator(small, exact(["decoder_params", "flops"]))
    columns, _ = evaluator.exact(genes)
    costs = evaluator.evaluated(genes, columns).costs_NM
    assert (costs[:, 0] == -columns["decoder_params"]).all()
    assert (costs[:, 1] == columns["flops"]).all()


def test_predicted_objectives(small: Space, stopwatch: Any) -> None:
    genes = small.sample(np.random.default_rng(0), 20)
    found = Predicted("latency", stopwatch).columns(Batch(small, genes, small.columns(genes)))
    assert found["latency_high"] == pytest.approx(1.1 * found["latency"])
    assert Predicted("memory", stopwatch).as_dict() == {
        "objective": "memory",
        "maximise": False,
        "predictor": {"stopwatch": 1},
    }
    with pytest.raises(UserError, match="latency is predicted from a profile"):
        Predicted(
            "latency",
        )


def test_a_rule_needs_someone_who_knows(small: Space, stopwatch: Any) -> None:
    limited = small.with_constraints(["latency_high <= 1ms"])
    assert limited.needs() == {"latency_high"}
    with pytest.raises(UserError, match="'latency_high <= 1ms' needs latency_high, which none of the objectives"):
        Evaluator(limited, exact(["flops"]))
    evaluator = Evaluator(limited, [*exact(["flops"]), Predicted("latency", stopwatch)])
    genes = small.sample(np.random.default_rng(0), 200)
    columns, fine = evaluator.exact(genes)
    assert (fine == small.valid(genes)).all()  # what is not known yet refuses nothing
    everything, fine = evaluator.further(genes, columns)
    assert (fine == (small.valid(genes) & (everything["latency_high"] <= 1e-3))).all()
    assert 0 < fine.mean() < 1


def test_what_is_not_a_number_is_an_error(small: Space) -> None:
    class Broken(Objective):
        name, maximise = "latency", False

        def columns(self, batch: Batch) -> dict[str, np.ndarray]:
            return {"latency": np.full(len(batch), np.nan)}

    genes = small.sample(np.random.default_rng(0), 2)
    with pytest.raises(UserError, match="latency is not a number for d="):
        Evaluator(small, [Broken()]).further(genes, small.columns(genes))


def test_a_search_needs_objectives_each_once(small: Space) -> None:
    with pytest.raises(UserError, match="at least one"):
        Evaluator(small, [])
    with pytest.raises(UserError, match="twice"):
        Evaluator(small, exact(["flops", "max:flops"]))


def test_a_proxy_scores_built_models(small: Space) -> None:
    tokens = np.random.default_rng(0).integers(0, 64, 500)
    objective = ProxyObjective("grad_norm", tokens, batch=2, seq=8)
    genes = small.sample(np.random.default_rng(1), 3)
    genes = np.concatenate([genes, genes[:1]])
    scores = objective.columns(Batch(small, genes, {}))["grad_norm"]
    assert scores[0] == scores[3] != scores[1]
    assert (scores > 0).all()
    assert ProxyObjective("grad_norm", tokens[::-1]).as_dict() != ProxyObjective("grad_norm", tokens).as_dict()
    with pytest.raises(UserError, match="token 99 given"):
        ProxyObjective("snip", np.full(99, 99)).columns(Batch(small, genes, {}))
