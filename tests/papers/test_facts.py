"""The verifier: every fact it can check holds, and it would say so if one did not."""

from __future__ import annotations

import json
from dataclasses import asdict

import pytest

from plait.core.errors import UserError
from plait.papers.verify import Fact, all_facts, select

FACTS = {fact.id: fact for fact in all_facts()}
# They measure this machine, six processes of it, while other tests run beside them: tests/device holds what is exact.
MEASURED = {"L18", "L22"}


@pytest.mark.parametrize("id", [pytest.param(id, marks=pytest.mark.slow) if id in MEASURED else id for id in FACTS])
def test_fact_holds(id):
    result = FACTS[id].result()
    assert result.status == ("erratum" if id.startswith("E") else "pass"), result


def test_a_wrong_number_fails():
    assert Fact("X1", "…", lambda: ("1", "2", False)).result().status == "fail"
    assert Fact("X1", "…", lambda: ("1", "2", False), erratum=True).result().status == "fail"


def test_a_broken_check_fails_and_says_why():
    result = Fact("X1", "…", lambda: 1 / 0).result()
    assert (result.status, result.ours) == ("fail", "ZeroDivisionError: division by zero")


def test_a_miscount_is_noticed(monkeypatch):
    """Break the cost of attention by one parameter: the exact counts must notice."""
    from plait.mixers.attn import XlAttnOptions

    right = XlAttnOptions.cost

    def wrong(self, d, seq, memory=0):
        cost = right(self, d, seq, memory)
        cost.params["query"] += 1
        return cost

    monkeypatch.setattr(XlAttnOptions, "cost", wrong)
    assert FACTS["P16"].result().status == "fail"


def test_a_misread_topology_is_shown(monkeypatch):
    from plait.papers.mad import facts

    right = facts._letters
    monkeypatch.setattr(facts, "_letters", lambda spec: "HHA" if spec == "mad-topology-12" else right(spec))
    result = FACTS["E08"].result()
    assert (result.status, result.ours) == ("fail", "8 H and 16 A as printed; 2 H and 1 A as read")


def test_select_takes_ids_and_prefixes():
    assert [fact.id for fact in select(["p16", "F0"])] == ["P16", *(id for id in FACTS if id.startswith("F0"))]
    with pytest.raises(UserError, match="Did you mean 'P16'"):
        select(["P166"])


def test_results_are_plain_data():
    assert set(json.loads(json.dumps(asdict(FACTS["P12"].result())))) == {"id", "what", "expected", "ours", "status"}
