"""The language of constraints, and what it says when nothing satisfies them."""

from __future__ import annotations

import numpy as np
import pytest

from plait.core.errors import UserError
from plait.space.constraints import Constraint, check_names, failures


@pytest.mark.parametrize(
    ("text", "values", "holds"),
    [
        ("x <= 20M", {"x": np.array([19_999_999, 20_000_000, 20_000_001])}, [True, True, False]),
        ("4M <= x < 0.1G", {"x": np.array([3e6, 4e6, 1e8])}, [False, True, False]),
        ("latency<=40ms", {"latency": np.array([0.0399, 0.0401])}, [True, False]),
        ("state <= 2MiB", {"state": np.array([2_097_152, 2_097_153])}, [True, False]),
        ("inner >= int(1.7 * d)", {"inner": np.array([217, 216]), "d": 128}, [True, False]),  # 1.7 · 128 = 217.6
        ("d_inner >= int(1.7 * d_model)", {"inner": np.array([217, 216]), "d": 128}, [True, False]),
        ("max(a, b) - min(a, b) == 2", {"a": np.array([1, 1]), "b": np.array([3, 4])}, [True, False]),
        ("-a % 3 != +2 // 1", {"a": np.array([1, 2])}, [False, True]),
        ("count(gated-deltanet) >= 1", {"count(gated-deltanet)": np.array([0, 1])}, [False, True]),
        ("mlp.inner / 2 > 3", {"mlp.inner": np.array([6, 7])}, [False, True]),
    ],
)
def test_what_a_rule_says(text: str, values: dict[str, object], holds: list[bool]) -> None:
    constraint = Constraint.parse(text)
    assert constraint.names == values.keys()
    assert constraint.check(values).tolist() == holds


@pytest.mark.parametrize(
    "text",
    [
        "decoder_params",
        "d <=",
        "__import__('os').system('true') == 0",
        "d <= 10 ** 9 ** 9",
        "[d] == 3",
        "d if d else 1",
        "abs(d) > 3",
        "int(d, 2) > 3",
        "d == 'x'",
        "d in (1, 2)",
        "40 parsecs < d",
    ],
)
def test_what_is_no_rule(text: str) -> None:
    with pytest.raises(UserError, match="constraint '"):
        Constraint.parse(text)


def test_an_unknown_name_gets_a_hint() -> None:
    with pytest.raises(UserError, match="Did you mean 'decoder_params'"):
        check_names(Constraint.parse("decoder_param <= 3M"), ["decoder_params", "flops"])


def test_failures_name_the_rule_to_blame() -> None:
    passed = {
        "latency <= 1ms": np.array([False, False, False, False]),
        "d <= 512": np.array([True, True, True, False]),
        "layers >= 1": np.ones(4, dtype=bool),
    }
    assert failures(passed, 4).splitlines() == [
        "0 of 4 samples satisfy latency <= 1ms; 3 fail it alone",
        "3 of 4 samples satisfy d <= 512; 0 fail it alone",
    ]
