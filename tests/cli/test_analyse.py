"""`plait analyse`: every study from the command line, on a table anyone could have made."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from plait.api.analyse_ranks import heatmap
from plait.api.analyse_table import cell
from plait.cli.analyse import group
from plait.core.errors import UserError

# Two language pairs: in the first more parameters help, in the second they hurt. Latency and memory make matched pairs.
TABLE = """pair,name,params,bleu,valid_ppl,latency_ms,memory_mb,d_model,n_layer
de-en,a,1000,20,60,10,100,64,4
de-en,b,2000,25,50,20,150,128,4
de-en,c,3000,30,40,30,200,128,8
de-en,d,3000,31,39,60,201,256,2
so-en,e,1000,9,80,12,110,64,4
so-en,f,2000,8,90,22,160,128,4
so-en,g,3000,7,,32,210,128,8
"""


@pytest.fixture
def analyse(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`analyse("ranks", …)`: the JSON of that command on the table; `text=True` for what a person sees."""
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(TABLE)

    def run(command: str, *arguments: str, text: bool = False) -> Any:
        asked = [command, "t.csv", *arguments, *([] if text else ["--json"])]
        result = CliRunner().invoke(group, asked, env={"COLUMNS": "200"})
        if result.exception is not None:
            raise result.exception
        return result.stdout if text else json.loads(result.stdout)

    return run


def test_src(analyse: Any) -> None:
    asked = ("--proxy", "params", "--truth", "valid_ppl", "--where", "pair=de-en", "--top", "50,100", "--bins", "2")
    found = analyse("ranks", *asked)
    assert found["models"] == 4
    assert found["src"] == pytest.approx(0.9486833)
    assert found["top"][1] == {"percent": 100, "models": 4, "src": found["src"], "common_ratio": 1}
    assert found["top"][0]["src"] is None, "the two best have equally many parameters"
    assert [each["models"] for each in found["bins"]] == [2, 2]
    text = analyse("ranks", *asked, text=True)
    assert "params: higher is better; valid_ppl: lower is better" in text
    turned = analyse("ranks", *asked, "--higher", "valid_ppl")
    assert turned["src"] == pytest.approx(-found["src"])


def test_heatmap_leaves_out_what_a_cell_lacks(analyse: Any) -> None:
    asked = (
        "--proxies",
        "params,latency_ms",
        "--truths",
        "bleu,valid_ppl",
        "--subsets",
        "pair",
        "--higher",
        "latency_ms",
    )
    cells = {
        (cell["subset"], cell["proxy"], cell["truth"]): (cell["models"], cell["src"])
        for cell in analyse("heatmap", *asked)["cells"]
    }
    assert len(cells) == 8
    assert cells["so-en", "params", "bleu"] == (3, -1)
    assert cells["so-en", "params", "valid_ppl"] == (2, -1)
    assert cells["de-en", "latency_ms", "bleu"] == (4, 1)
    assert "so-en" in analyse("heatmap", *asked, text=True)


def test_heatmap_keeps_the_best_learning_rate_of_each_model(tmp_path: Path) -> None:
    """By hand: with all runs the rates hide the ranking; with each model's best, larger is better."""
    file = tmp_path / "runs.csv"
    file.write_text("model,params,lr,ppl\na,1,0.1,30\na,1,0.01,90\nb,2,0.1,95\nb,2,0.01,25\nc,3,0.1,99\nc,3,0.01,20\n")
    asked = {"proxies": "params", "truths": "ppl"}
    (every,) = heatmap(str(file), **asked).as_dict()["cells"]
    (best,) = heatmap(str(file), **asked, best_per="model").as_dict()["cells"]
    assert (every["models"], best["models"]) == (6, 3)
    assert every["src"] < 0.5
    assert best["src"] == 1


def test_front_and_hull(analyse: Any) -> None:
    asked = ("--minimise", "latency_ms,memory_mb", "--maximise", "bleu")
    assert [row["row"] for row in analyse("front", *asked)["front"]] == ["a", "b", "c", "d"]
    hull = analyse("front", "--minimise", "latency_ms,valid_ppl", "--hull")
    assert hull["front"] == [
        {"row": "a", "latency_ms": 10, "valid_ppl": 60},
        {"row": "c", "latency_ms": 30, "valid_ppl": 40},
        {"row": "d", "latency_ms": 60, "valid_ppl": 39},
    ]
    text = analyse("front", "--minimise", "latency_ms,valid_ppl", "--label", "pair", text=True)
    assert "de-en" in text
    assert "left out: 1 row without a number" in text


def test_dominated(analyse: Any) -> None:
    asked = ("--minimise", "latency_ms,memory_mb", "--maximise", "params")
    found = analyse("dominated", *asked)["dominated"]
    assert [(row["row"], row["dominated_by"]) for row in found] == [("d", "c"), ("e", "a"), ("f", "b"), ("g", "c")]
    assert analyse("dominated", *asked, "--strict")["dominated"] == []


def test_hypervolume(analyse: Any) -> None:
    asked = ("--minimise", "latency_ms", "--maximise", "bleu", "--where", "name<=b")
    assert analyse("hypervolume", *asked)["reference"] == {"latency_ms": 20, "bleu": 20}
    found = analyse("hypervolume", *asked, "--reference", "30,10")
    assert found["hypervolume"] == 20 * 10 + 10 * 5


def test_davg(analyse: Any) -> None:
    asked = ("--proxy", "params", "--cost", "latency_ms", "--quality", "valid_ppl", "--where", "pair=de-en")
    found = analyse("front-distance", *asked, "--whole-front")
    assert [row["row"] for row in found["front"]] == ["a", "b", "c"]
    assert found["d_avg"] == 0
    # The hull goes straight from a to c: b meets a, the cheaper of two equally near.
    assert analyse("front-distance", *asked)["d_avg"] == pytest.approx((10 / 60) / 3)


def test_twins(analyse: Any) -> None:
    (pair,) = analyse("matched-pairs", "--equal", "params,memory_mb", "--far", "latency_ms")["matched_pairs"]
    assert (pair["low"], pair["high"], pair["ratio"]) == ("c", "d", 2)
    assert "no matched pairs found" in analyse(
        "matched-pairs", "--equal", "params,memory_mb", "--far", "latency_ms", "--ratio", "3", text=True
    )


def test_savings(analyse: Any) -> None:
    sets = ("--where", "pair=de-en", "--baseline", "t.csv", "--baseline-where", "pair=so-en")
    (row,) = analyse("savings", *sets, "--cost", "latency_ms", "--quality", "bleu")["savings"]
    assert (row["compared"], row["outside"]) == (0, 3)
    assert row["bleu_gain"] == pytest.approx(((21 - 9) + (26 - 8) + (30 + 2 / 30 - 7)) / 3)
    itself = ("--where", "pair=de-en", "--baseline", "t.csv", "--baseline-where", "pair=de-en")
    (row,) = analyse("savings", *itself, "--cost", "latency_ms", "--quality", "valid_ppl")["savings"]
    assert (row["compared"], row["mean_saving"], row["factor_at_best"]) == (4, 0, 1)


def test_aspect(analyse: Any) -> None:
    found = analyse("aspect", "--metrics", "latency_ms", "--size", "params", "--where", "pair=de-en")
    assert found["largest"] == {"latency_ms": 2}
    assert found["alone"] == 2
    assert (found["groups"][0]["aspect_from"], found["groups"][0]["aspect_to"]) == (16, 128)


def test_lr(analyse: Any) -> None:
    Path("t.csv").write_text("m,rate,loss,p\na,0.1,3,1\na,0.2,2,1\nb,0.1,1,2\nb,0.2,,2\n")
    found = analyse("lr", "--model", "m", "--rate", "rate", "--quality", "loss", "--proxy", "p")
    assert [(row["rate"], row["wins"]) for row in found["rates"]] == [(0.1, 1), (0.2, 1)]
    assert found["best"] == [{"model": "a", "rate": 0.2, "quality": 2}, {"model": "b", "rate": 0.1, "quality": 1}]
    assert found["src_best"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ranks", "--proxy", "param", "--truth", "bleu"), "Did you mean 'params'"),
        (("ranks", "--proxy", "params", "--truth", "bleu", "--top", "ten"), "--top ten"),
        (
            ("ranks", "--proxy", "params", "--truth", "bleu", "--where", "pair=fr-en"),
            "no row of t.csv meets pair=fr-en",
        ),
        (("ranks", "--proxy", "params", "--truth", "bleu", "--lower", "bleu", "--higher", "bleu"), "both"),
        (("front",), "--minimise and --maximise"),
        (("front", "--minimise", "bleu", "--maximise", "bleu"), "named twice"),
        (("front", "--minimise", "bleu", "--hull"), "--hull takes two objectives"),
        (("matched-pairs", "--equal", "", "--far", "bleu"), "--equal"),
        (("hypervolume", "--minimise", "bleu", "--reference", "1,2"), "2 values for 1 objectives"),
        (("front", "--minimise", "valid_ppl", "--where", "name=g"), "has a number in each"),
    ],
)
def test_mistakes(analyse: Any, arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        analyse(*arguments)


def test_headings_wrap_between_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where they fit they are the columns' own names; in 80 columns no word of theirs is cut in two."""
    file = tmp_path / "models.csv"
    rows = [f"m{i},{kind},{100 + 7 * i},{200 - 3 * i},{30 - i}" for i in range(6) for kind in "ab"]
    file.write_text("\n".join(["name,kind,latency,memory,perplexity", *rows]))
    arguments = ["savings", str(file), "--baseline", str(file), "--cost", "latency,memory", "--quality",
                 "perplexity", "--where", "kind=a", "--baseline-where", "kind=b"]  # fmt: skip
    for width, heading in ((80, "mean saving"), (200, "mean_saving")):
        drawn_on = Console(width=width, highlight=False)
        monkeypatch.setattr("plait.cli.analyse.console", lambda on=drawn_on: on)
        head = CliRunner().invoke(group, arguments, catch_exceptions=False).stdout.splitlines()[:2]
        assert heading in " ".join(head), head


def test_empty_lists_are_a_dash() -> None:
    assert cell([]) == "–"
    assert cell([128, 256.5]) == "128, 256.5"
