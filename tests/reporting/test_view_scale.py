"""The report's view of a scaling study."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from plait.records.record import Record
from plait.reporting.views import ALONE
from plait.scaling import view


def test_runs_are_listed_by_architecture_budget_and_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """And not in the order of their keys, which are hashes: no column of the table was in any order."""
    planned = [("b", 2e9, 8), ("a", 2e9, 4), ("b", 1e9, 4), ("a", 1e9, 9), ("a", 2e9, 2), ("a", 1e9, 1)]
    rows = {
        str(number): {"architecture": name, "flops": flops, "params": params}
        for number, (name, flops, params) in enumerate(planned)
    }
    monkeypatch.setattr(view, "run_row", lambda run, *_: run)
    study = Record.of("scale", {"protocol": 1, "runs": [{"key": key} for key in rows]}, {}, {})
    context: Any = replace(ALONE, get=rows.get)
    assert [tuple(row.values()) for row in view._rows(study, context)] == sorted(planned)
