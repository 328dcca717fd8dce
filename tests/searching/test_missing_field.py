"""A lost column from a printed count: the paper's own damaged table, and what cannot be told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from plait.analysis.table import Table
from plait.cli.analyse import group
from plait.core.errors import UserError
from plait.papers.lts.facts import BIASES, XL_ROW
from plait.papers.lts.presets import rows
from plait.searching.missing_field import MissingField, filled

MLP = "d={d} vocab=50 final_norm=false | mlp[inner={inner},bias=false]"
GRID = range(128, 961, 64)


def table(*entries: dict[str, object]) -> Table:
    return Table.of("t", entries)


def test_the_earlier_table_3_has_its_widths_again() -> None:
    """68 of its 74 rows at least, says the audit of the table: with the biases allowed for, all of them."""
    chosen = [row for row in rows() if row.earlier and row.table == 3]
    damaged = table(
        *({"n_head": list(r.heads), "d_inner": list(r.inner), "params": r.decoder_params_m} for r in chosen)
    )
    found = MissingField(damaged, XL_ROW, "d_model", GRID, "params", allowance=BIASES).infer()
    assert len(found) == 74
    assert sum(one.values == (row.d,) for one, row in zip(found, chosen, strict=True)) >= 68
    strict = MissingField(damaged, XL_ROW, "d_model", GRID, "params").infer()
    assert sum(one.values == (row.d,) for one, row in zip(strict, chosen, strict=True)) == 67
    assert all(one.verdict == "none" for one, row in zip(strict, chosen, strict=True) if one.values != (row.d,))


def test_unique_ambiguous_and_none() -> None:
    """An MLP without biases of width d and inner 100 has 200 d parameters and a norm's d: 0.02 M are 99 or 100 of d."""
    given = table({"inner": 100, "p": 0.02}, {"inner": 1000, "p": 0.05}, {"inner": 1000, "p": 9.99})
    found = MissingField(given, MLP, "d", [25, 75, 99, 100, 101], "p").infer()
    assert [one.values for one in found] == [(75, 99, 100, 101), (25,), ()]
    assert [one.verdict for one in found] == ["ambiguous", "unique", "none"]
    assert found[1].counts == (25 * 2001,)


def test_lists_are_written_layer_by_layer() -> None:
    row = {"d": 64, "heads": [2, 4], "inner": [100, 200]}
    assert filled("d={d} | attn[heads={heads}] mlp[inner={inner}]", row) == (
        "d=64 | attn[heads=2] mlp[inner=100]  attn[heads=4] mlp[inner=200]"
    )
    with pytest.raises(UserError, match="heads has 2, inner has 3 entries"):
        filled("d={d} | attn[heads={heads}] mlp[inner={inner}]", {**row, "inner": [1, 2, 3]})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"quantity": "params"}, "no parameter count 'params'"),
        ({"field": "width"}, "the template has no {width}"),
        ({"template": MLP.replace("{inner}", "{iner}")}, "Did you mean 'inner'"),
        ({"values": []}, "give the values that d may have"),
    ],
)
def test_mistakes(changes: dict[str, object], message: str) -> None:
    given = {"template": MLP, "field": "d", "values": [64], **changes}
    with pytest.raises(UserError, match=message):
        MissingField(table({"inner": 100, "p": 0.1}), printed="p", **given)  # type: ignore[arg-type]


def test_from_the_command_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    chosen = [row for row in rows() if row.backbone == "gpt2" and not row.earlier][:6]
    lines = [f'{r.name},{" ".join(map(str, r.heads))},"{list(r.inner)}",{r.decoder_params_m}' for r in chosen]
    Path("t.csv").write_text("\n".join(["name,n_head,d_inner,params", *lines]) + "\n")
    spec = "d={d} vocab=50264 norm=layer | attn[heads={n_head},pos=none,bias] mlp[inner={d_inner},act=gelu-tanh]"
    asked = ["infer", "t.csv", "--field", "d", "--values", "64..1024 step 64", "--spec", spec, "--printed", "params"]
    result = CliRunner().invoke(group, [*asked, "--json"], catch_exceptions=False)
    document = json.loads(result.stdout)
    assert document["tally"] == {"unique": 6, "ambiguous": 0, "none": 0}
    assert [row["d"] for row in document["rows"]] == [row.d for row in chosen]
    text = CliRunner().invoke(group, asked, catch_exceptions=False, env={"COLUMNS": "200"}).stdout
    assert "unique 6, ambiguous 0, none 0 of 6 rows; decoder_params within half a printed digit (50,000)" in text
    with pytest.raises(UserError, match=r"the template makes no spec of the first row: .*atn"):
        CliRunner().invoke(group, [*asked[:7], spec.replace("attn[", "atn["), *asked[8:]], catch_exceptions=False)
