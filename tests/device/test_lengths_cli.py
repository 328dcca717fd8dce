"""`plait measure SPEC --lengths …`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
import typer
from typer.testing import CliRunner

from plait.cli import measure
from plait.core.errors import UserError

SPEC = "d=32 vocab=50 | (attn[heads=2] (mlp)x2)x2"

app = typer.Typer()
app.command("measure")(measure.command)


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, catch_exceptions=False, env={"COLUMNS": "200"})
    assert result.exit_code == 0, result.output
    return str(result.stdout)


def test_a_row_for_each_kind_of_block_a_column_for_each_length() -> None:
    lines = run(SPEC, "--lengths", "16,64,128").splitlines()
    assert "batch 1; cpu, float32, 1 thread" in lines[0]
    assert lines[1].split() == [
        "block",
        "16",
        "64",
        "128",
        "exponent",
        "interval",
        "of",
        "FLOPs",
        "of",
        "mixing",
        "noisy",
    ]
    attention, feed_forward = lines[2].split(), lines[3].split()
    assert (attention[0], feed_forward[0]) == ("attn[heads=2]", "mlp")
    assert all(float(cell) > 0 for cell in attention[1:4])
    assert attention[8:10] == [f"{found_flops_exponent():.2f}", "2.00"]
    assert feed_forward[8:10] == ["1.00", "–"]
    assert "64 to 128 tokens" in lines[4]


def found_flops_exponent() -> float:
    """Attention at width 32: 8 N d² for the projections and 4 N² d for the scores, from 64 to 128 tokens."""
    from math import log2

    return log2((8 * 128 * 32**2 + 4 * 128**2 * 32) / (8 * 64 * 32**2 + 4 * 64**2 * 32))


def test_a_layer_that_reads_another_is_timed_by_itself() -> None:
    lines = run("d=32 | attn[heads=4] cross-attn[heads=4]", "--lengths", "16,32").splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["attn[heads=4]", "cross-attn[heads=4]"]


def test_json_and_figure(tmp_path: Path) -> None:
    file = tmp_path / "new" / "lengths.svg"
    document = json.loads(run(SPEC, "d=64 | mlp", "--lengths", "8,16", "--batch", "2", "--svg", str(file), "--json"))
    assert document["setting"]["batch"] == 2
    assert "seq" not in document["setting"]
    assert document["lengths"] == [8, 16]
    assert [(one["block"], one["d"]) for one in document["blocks"]] == [("attn[heads=2]", 32), ("mlp", 32), ("mlp", 64)]
    figure = ElementTree.parse(file).getroot()
    assert len(figure.findall(".//{*}polyline")) == 3
    said = [text.text or "" for text in figure.iterfind(".//{*}text")]
    assert {"d=32 | attn[heads=2]", "d=32 | mlp", "d=64 | mlp", "8", "16"} <= set(said)
    assert sum(bool(re.fullmatch(r"k = -?\d\.\d\d \(FLOPs 1\.00\)", text)) for text in said) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--lengths", "16"), "at least two different"),
        (("--lengths", ""), "at least two different"),
        (("--svg", "x.svg"), "also give --lengths"),
        (("--lengths", "8,16", "--again"), "--again cannot be combined with --lengths"),
        (("--lengths", "8,16", "--archai"), "--archai cannot be combined with --lengths"),
    ],
)
def test_mistakes(arguments: tuple[str, ...], message: str) -> None:
    with pytest.raises(UserError, match=message):
        run(SPEC, *arguments)
