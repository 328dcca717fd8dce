"""What Python users see of results: short at a prompt, the telling columns first in a table, notes and all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import plait
from plait.api.design import DesignResult

RACED = {"gla": 0.8, "attn": 0.2}
SPEC = "d=64 vocab=99 | (gla swiglu)x2"


def candidate(name: str, params: int) -> dict[str, Any]:
    entry = {"predicted": 1.0, "interval": [0.9, 1.1], "measured": 1.0}
    sizes = dict.fromkeys(("decoder_params", "total_params", "active_params", "flops", "kv_cache", "state"), params)
    return {
        "pattern": name, "spec": f"d=8 | {name}", **sizes, "fixed_state": 0, "weights": 1, "within": True,
        "measurement": "0123456789abcdef", "latency_ms": entry, "memory_mb": entry, "exceeded": [],
    }  # fmt: skip


@pytest.fixture
def design() -> DesignResult:
    document: Any = {
        "points": ["Take gla: better than every other.", "Why: <it> is."],
        "next": [{"to": "use the model", "command": "plait export runs/train-1 --to hf"}],
        "candidates": [candidate("attn", 9), candidate("gla", 8)],
        "race": {
            "architectures": [
                {"name": name, "spec": f"d=8 | {name}", "loss": 2 - p, "interval": None, "seeds": 1, "tokens": 1e6,
                 "trained_tokens": 1000, "lr": 1e-3, "curve": [], "p_best": p, "regret": 0.0, "stopped": False}
                for name, p in RACED.items()
            ],
            "paired": [], "noise": None, "verdict": "", "rungs": [], "cost": {"share": 0.1, "seconds": 1.0},
        },
        "probe": {"architectures": []},
        "pick": {"pattern": "gla"},
    }  # fmt: skip
    return DesignResult("d=8 | gla", "Take gla.", "report.html", "runs/train-1", document)


def test_a_design_is_a_headline_points_and_the_candidates_the_best_first(design: DesignResult) -> None:
    lines = str(design).splitlines()
    assert lines[:3] == ["Take gla: better than every other.", "d=8 | gla", "- Why: <it> is."]
    assert lines[3] == "- To use the model: plait export runs/train-1 --to hf"
    assert lines[4].split()[:4] == ["pattern", "picked", "loss", "p_best"]
    assert [line.split()[0] for line in lines[5:]] == ["gla", "attn"]
    html = design._repr_html_()
    assert "<li>Why: &lt;it&gt; is.</li>" in html
    assert html.index("p_best") < html.index("decoder_params")
    assert len(repr(design)) < 700


def test_the_cost_of_a_model_prints_as_a_table() -> None:
    lines = str(plait.cost(SPEC)).splitlines()
    assert lines[0] == SPEC
    assert lines[2].split() == ["parameters", f"{plait.cost(SPEC).total_params:,}"]


def test_an_analysis_has_all_of_its_tables_and_notes(tmp_path: Path) -> None:
    file = tmp_path / "models.csv"
    file.write_text("name,params,loss\n" + "\n".join(f"m{i},{i},{9 - i}" for i in range(8)))
    found = plait.analyse.ranks(str(file), proxy="params", truth="loss", bins="2")
    assert "SRC 1.000" in str(found)
    assert "SRC 1.000" in found._repr_html_()
    assert found._repr_html_().count("<table>") == 2
    assert "low" in str(found).split("\n\n")[1]


def test_a_check_says_whether_the_contract_holds() -> None:
    found = plait.check("identity", speed=False)
    assert str(found).splitlines()[0] == "the contract holds"
