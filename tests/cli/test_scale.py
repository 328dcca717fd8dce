"""`plait scale …` from the command line: the document others rely on, and messages."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from plait.analysis.scaling_simulation import CHINCHILLA, Design, simulated
from plait.cli.main import app
from plait.core.errors import UserError


@pytest.fixture
def runs_file(tmp_path: Path) -> Path:
    runs = simulated(CHINCHILLA, Design(np.logspace(18, 21, 4)), 0.003, np.random.default_rng(0))
    lines = ["flops,params,tokens,loss"]
    lines += [f"{a!r},{b!r},{c!r},{d!r}" for a, b, c, d in zip(
        *(getattr(runs, name).tolist() for name in ("flops", "params", "tokens", "loss")), strict=True
    )]  # fmt: skip
    path = tmp_path / "runs.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_document(runs_file: Path) -> None:
    ran = CliRunner().invoke(app, ["scale", "fit", str(runs_file), "--target", "1e22", "--json", "--draws", "100"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.stdout)
    assert set(found["surface"]) == {"E", "A", "B", "alpha", "beta"}
    assert {"a", "b", "N_star", "D_star", "loss"} <= set(found["frontier"])
    for one in (*found["surface"].values(), found["frontier"]["N_star"]):
        low, high = one["interval"]
        assert low <= one["value"] <= high
    assert found["frontier"]["extrapolation"] == pytest.approx(10)
    assert found["isoflop"]["a"]["value"] == pytest.approx(found["frontier"]["a"]["value"], abs=0.05)
    assert len(found["isoflop"]["groups"]) == 4


def test_the_table_says_what_counts(runs_file: Path) -> None:
    ran = CliRunner().invoke(app, ["scale", "fit", str(runs_file), "--target", "1e22", "--draws", "50"])
    assert ran.exit_code == 0
    for words in ("28 runs", "N* at the target", "a by parabolas", "10 times the largest budget"):
        assert words in ran.stdout


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--target", "much"], "a number of FLOPs"),
        (["--target", "-1"], "above 0"),
        (["--target", "1e22", "--draws", "3"], "20 draws or more"),
        (["--target", "1e22", "--where", "flops<1"], "no row of"),
    ],
)
def test_messages(runs_file: Path, more: list[str], message: str) -> None:
    ran = CliRunner().invoke(app, ["scale", "fit", str(runs_file), *more])
    assert isinstance(ran.exception, UserError)
    assert message in str(ran.exception)
