"""`plait scale …` from the command line: the document others rely on, and messages."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from io import StringIO
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from typer.testing import CliRunner

from plait.analysis.scaling_laws import fit_laws
from plait.analysis.scaling_simulation import CHINCHILLA, Design, joined, simulated
from plait.api.scale import ScalingRuns
from plait.cli.main import app
from plait.cli.output import character_plot
from plait.cli.scale_display import law_tables, print_runs
from plait.core.errors import UserError
from plait.reporting.scaling import scaling_page


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


def test_the_table_says_what_counts_and_draws(runs_file: Path, tmp_path: Path) -> None:
    figure = tmp_path / "f.svg"
    more = ["--target", "1e22", "--draws", "50", "--plot", "--svg", str(figure)]
    ran = CliRunner().invoke(app, ["scale", "fit", str(runs_file), *more])
    assert ran.exit_code == 0
    for words in ("28 runs", "N* at the target", "a by parabolas", "10 times the largest budget", "└──"):
        assert words in ran.stdout
    drawn = figure.read_text()
    for words in ("Best size", "Best number of tokens", "Compute-optimal frontier", "Off the frontier"):
        assert words in drawn


def test_the_page_loads_nothing(runs_file: Path, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    ran = CliRunner().invoke(
        app, ["scale", "fit", str(runs_file), "--target", "1e22", "--draws", "50", "-o", str(page)]
    )
    assert ran.exit_code == 0, ran.output
    text = page.read_text()
    for words in ("IsoFLOP curves", "Best size", "Best number of tokens", "state-optimal frontiers", "Off the",
                  "The batch pitfall", "What to train at"):  # fmt: skip
        assert words in text
    assert text.count("<svg") >= 6
    assert "default-src 'none'" in text
    for loads in ("http://", "https://", "src=", "@import"):
        assert loads not in text.replace("http://www.w3.org/2000/svg", "")
    nowhere = CliRunner().invoke(app, ["scale", "fit", str(runs_file), "--target", "1e22", "-o", str(runs_file / "x")])
    assert isinstance(nowhere.exception, UserError)


def test_many_architectures(tmp_path: Path) -> None:
    """In the terminal no cell is broken; on the page they are rows; runs that no parabola goes through are drawn."""
    parts = [simulated(CHINCHILLA, Design(np.logspace(18, 21, 3)), 0.003, np.random.default_rng(k), name=f"arch {k}")
             for k in range(5)]  # fmt: skip
    runs = joined(parts)
    large = simulated(CHINCHILLA, Design([1e22], 1, 1.0, 1.0), 0.003, np.random.default_rng(9), name="arch 4")
    runs = replace(joined([runs, large]), group=np.append(runs.group, -1))
    laws = fit_laws(runs, 1e23, draws=50)
    for width, tables in ((60, 5), (100, 3), (400, 1)):
        made = law_tables(laws, width)
        out = Console(width=width, file=StringIO())
        for one in made:
            out.print(one)
        text = out.file.getvalue()  # type: ignore[attr-defined]
        assert len(made) == tables
        assert len(text.splitlines()) == tables * 15  # a line for each row, none in two
    page = scaling_page(laws, "runs.csv")
    assert page.count(">arch 3</td>") >= 2
    assert "1e22 FLOPs" in page
    unsortable = '<table data-name="laws" data-unsortable'
    assert unsortable not in page  # its rows are architectures
    assert unsortable in scaling_page(fit_laws(joined(parts[:2]), 1e23, draws=50), "runs.csv")


def test_a_character_plot_has_its_marks_in_place() -> None:
    lines = character_plot([(1, 1.0, "a"), (100, 3.0, "b"), (10, 2.0, "c")], "x", "y").splitlines()
    rows = [line.partition("│")[2] for line in lines if "│" in line]
    assert rows[0].index("b") == 67
    assert rows[-1] == "a"
    assert any(33 <= row.find("c") <= 34 for row in rows[8:10])
    assert character_plot([(0, 1.0, "a"), (1, math.nan, "b")], "x", "y") == "nothing to draw"


def test_the_pitfall_is_shown() -> None:
    ran = CliRunner().invoke(app, ["scale", "pitfall"])
    assert ran.exit_code == 0
    assert "growing batch" in ran.stdout


def test_a_plan_is_shown_and_written(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    given = ["--arch", "mad-transformer", "--speed", "4e14", "--devices", "8", "--out", str(path)]
    ran = CliRunner().invoke(app, ["scale", "plan", *given])
    assert ran.exit_code == 0, ran.output
    assert "the batch grows with the size inside the groups of 4e+18" in ran.stdout
    assert json.loads(path.read_text())["runs"][0]["architecture"] == "mad-transformer"


def test_a_file_of_another_trainer(runs_file: Path) -> None:
    command = ["scale", "fit", str(runs_file), "--target", "1e22", "--draws", "20", "--json"]
    expected = json.loads(CliRunner().invoke(app, command).stdout)
    runs_file.write_text(runs_file.read_text().replace("flops,params,tokens,loss", "C,N,D,val_loss"))
    refused = CliRunner().invoke(app, command)
    assert isinstance(refused.exception, UserError)
    options = str(refused.exception).partition("Say which they are: ")[2].rstrip(".").split()
    assert json.loads(CliRunner().invoke(app, [*command, *options]).stdout) == expected


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--target", "1e22", "--column", "loss"], "such as loss=val_loss"),
        (["--target", "1e22", "--column", "loss=lost"], "has no column 'lost'"),
        (["--target", "much"], "a number of FLOPs"),
        (["--target", "-1"], "above 0"),
        (["--target", "1e22", "--draws", "3"], "at least 20 draws"),
        (["--target", "1e22", "--where", "flops<1"], "no row of"),
    ],
)
def test_messages(runs_file: Path, more: list[str], message: str) -> None:
    ran = CliRunner().invoke(app, ["scale", "fit", str(runs_file), *more])
    assert isinstance(ran.exception, UserError)
    assert message in str(ran.exception)


def test_the_store_is_named_where_no_file_is(runs_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It said: no row of None meets …"""
    from plait.api import scale_fit
    from plait.core.errors import UserError

    read = scale_fit.read_runs
    monkeypatch.setattr(scale_fit, "read_runs", lambda file, *_: read(str(runs_file)))
    with pytest.raises(UserError, match="no row of the store meets flops<1"):
        scale_fit.fit(target="1e22", where=["flops<1"])


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--sizes", "0"], "--sizes and --seeds: must be at least 1"),
        (["--groups", "1000"], "--groups 1000 with --spacing 2.5: the largest budget"),
    ],
)
def test_plans_that_are_none(more: list[str], message: str) -> None:
    given = ["--arch", "a=d=16 | attn[heads=2] mlp", "--total", "1e9", "--no-price", "--seq-len", "32"]
    ran = CliRunner().invoke(app, ["scale", "plan", *given, *more])
    assert isinstance(ran.exception, UserError)
    assert message in str(ran.exception)


@pytest.mark.parametrize(
    ("store", "command"),
    [
        (None, "plait scale fit --target FLOPS"),
        ("sqlite:///my runs/plait.db", "plait scale fit 'sqlite:///my runs/plait.db' --target FLOPS"),
        ("postgresql://me:secret@host/db", "plait scale fit STORE_URL --target FLOPS"),
    ],
)
def test_the_next_command_names_the_store(store: str | None, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a user's mixers: runs have copies of them."""
    print_runs(ScalingRuns((), ()), store)
    assert f"`{command}` reads them" in capsys.readouterr().out
