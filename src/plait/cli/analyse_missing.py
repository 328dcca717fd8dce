"""`plait analyse infer`: a column that a table lost, from a count that it prints."""

from __future__ import annotations

from collections import Counter
from typing import Annotated

import typer

from plait.cli.analyse_table import File, Label, Where, label_of, read, show
from plait.cli.options import AsJson


def infer(
    file: File,
    field: Annotated[str, typer.Option(help="The field that is missing, such as d_model.")],
    values: Annotated[str, typer.Option(help="What it may be: 128..960 step 64, or 256|512|1024.")],
    spec: Annotated[str, typer.Option(help="A row as a spec, columns in braces; lists are written layer by layer.")],
    printed: Annotated[str, typer.Option(help="The column with the count as printed.")],
    unit: Annotated[float, typer.Option(min=1, help="Of that column: 1e6 where it has millions.")] = 1e6,
    count: Annotated[str, typer.Option(help="What is counted: decoder_params, total_params …")] = "decoder_params",
    allowance: Annotated[float, typer.Option(min=0, help="Parameters by which the count may differ beside that.")] = 0,
    where: Where = None,
    label: Label = None,
    as_json: AsJson = False,
) -> None:
    """Recover a lost column from a printed parameter count: unique, ambiguous or none, row by row."""
    from plait.searching.missing_field import AMBIGUOUS, NONE, UNIQUE, MissingField
    from plait.space.choices import numbers_of

    table, missing = read(file, where, [printed])
    question = MissingField(table, spec, field, numbers_of(values), printed, unit, count, allowance)
    question.check()
    rows = [
        {
            "row": name,
            "verdict": found.verdict,
            field: found.values[0] if len(found.values) == 1 else None,
            "fitting": list(found.values),
            "counted": list(found.counts),
        }
        for name, found in zip(label_of(table, label), question.infer(), strict=True)
    ]
    tally = Counter(str(row["verdict"]) for row in rows)
    told = ", ".join(f"{verdict} {tally[verdict]}" for verdict in (UNIQUE, AMBIGUOUS, NONE))
    note = f"{told} of {len(rows)} rows; {count} within half a printed digit ({question.half_digit:,.0f})"
    note += f" and {allowance:,.0f}" if allowance else ""
    document = {"rows": rows, "tally": {verdict: tally[verdict] for verdict in (UNIQUE, AMBIGUOUS, NONE)}}
    without = f"left out: {missing} rows without a printed count" if missing else ""
    show(document, as_json, "rows", notes=[note, without])
