"""The verifier: every fact it can check holds, and it would say so if one did not."""

from __future__ import annotations

import json

import pytest

from plait.core.errors import UserError
from plait.verify import all_facts, select
from plait.verify.fact import Fact

FACTS = {fact.id: fact for fact in all_facts()}
# The facts these parts of plait answer for: all of class X about specs, counts, FLOPs, presets, rules and mixers.
COVERED = [
    *("L01", "L02", "L03", "L03.1", "L04", "L05", "L06", "L07", "L11", "L12", "L13", "L21", "L24", "L27"),
    *("L28", "L29", "L34", "L35"),
    *(
        "P01",
        "P02",
        "P03",
        "P04",
        "P05",
        "P06",
        "P11",
        "P12",
        "P13",
        "P14",
        "P16",
        "P17",
        "P18",
        "P19",
        "P21",
        "P22",
        "P23",
        "P24",
    ),
    *("M01", "M02", "M03", "M04", "M05", "M06", "M07"),
    *("M09", "M10", "M11", "M12", "M13", "M14", "M26", "M27", "M28", "M29", "M30", "M31", "M32", "M33"),
    *("M34", "M35", "M39"),
    *("F01", "F02", "F03", "F04", "F05", "F06", "F08", "F09", "F10", "F11", "F12", "F14", "F24"),
    *("C01", "C02", "C03", "E01", "E02", "E03", "E04", "E05", "E06", "E07", "E08"),
]


def test_the_covered_facts_have_checks_and_the_others_do_not():
    assert [id for id, fact in FACTS.items() if fact.check] == sorted(COVERED, key=list(FACTS).index)


@pytest.mark.parametrize("id", COVERED)
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
    from plait.arch.xl_attn import XlAttnOptions

    right = XlAttnOptions.cost

    def wrong(self, d, seq, memory=0):
        cost = right(self, d, seq, memory)
        cost.params["query"] += 1
        return cost

    monkeypatch.setattr(XlAttnOptions, "cost", wrong)
    assert FACTS["P16"].result().status == "fail"


def test_select_takes_ids_and_prefixes():
    assert [fact.id for fact in select(["p16", "F0"])] == ["P16", *(id for id in FACTS if id.startswith("F0"))]
    with pytest.raises(UserError, match="Did you mean 'P16'"):
        select(["P166"])


def test_results_are_plain_data():
    assert set(json.loads(json.dumps(FACTS["P12"].result().as_dict()))) == {"id", "what", "expected", "ours", "status"}
