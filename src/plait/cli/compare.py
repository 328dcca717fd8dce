"""`plait compare A B C … --data TEXT`: which architecture learns a text best, with what confidence."""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.options import (
    AsJson,
    Cluster,
    FormerLength,
    GpusPerTraining,
    Log,
    Mixers,
    Runs,
    StoreUrl,
    Text,
    TrainingBatch,
    read_count,
)
from plait.cli.output import (
    console,
    fits,
    paragraph,
    passed,
    plain,
    print_result,
    progress_bar,
    resumable,
    table,
    within_time,
    wrote,
)
from plait.core import defaults
from plait.core.units import duration, short

if TYPE_CHECKING:
    from rich.table import Table

    from plait.api.compare import CompareResult
    from plait.reporting.charts import Series

VERDICTS = {"not distinguishable": "unclear", "lowest loss": "lowest"}  # short, for a table


def command(
    architectures: Annotated[
        list[str] | None,
        typer.Argument(
            help="Specs, presets, spec files, runs, mixers (gla, gla\\[heads=8]), mixer files (my_mixer.py).",
            show_default=False,
        ),
    ] = None,
    data: Text = "builtin:stdlib",
    tokenizer: Annotated[str | None, typer.Option(help="Tokenizer: bytes, chars, words, bpe:SIZE …")] = None,
    budget: Annotated[
        str, typer.Option("--time", help=f"Total time: 90s, 10m, 2h.  \\[default: {defaults.TIME}]")
    ] = "",
    tokens: Annotated[
        float | None,
        typer.Option(help="Tokens per training instead of --time, such as 2M.", parser=read_count, metavar="<count>"),
    ] = None,
    flops: Annotated[
        float | None,
        typer.Option(help="FLOPs per training instead of --time, such as 1e15.", parser=read_count, metavar="<count>"),
    ] = None,
    at: Annotated[
        str, typer.Option(help="What is equal for all: tokens, flops or time.  \\[default: tokens; flops with --flops]")
    ] = "",
    match: Annotated[
        str,
        typer.Option(help="Resize all to the first one's params or state, or none.  \\[default: params among mixers]"),
    ] = "",
    seeds: Annotated[
        int, typer.Option(min=1, help="Seeds per architecture; five resolve differences of three times the noise.")
    ] = 5,
    no_rate_search: Annotated[bool, typer.Option("--no-rate-search", help="Train all with --lr.")] = False,
    lr: Annotated[
        float | None, typer.Option(help="Initial peak learning rate of the search.  \\[default: 0.256 / width]")
    ] = None,
    batch: TrainingBatch = 8,
    seq_len: Annotated[int, typer.Option(min=2, help="Sequence length.")] = 256,
    length: FormerLength = None,
    held_out: Annotated[int, typer.Option(min=1, help="Validation tokens.")] = defaults.HELD_OUT,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes. \\[default: one per core]")] = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    cluster: Cluster = "",
    gpus_per_training: GpusPerTraining = None,
    log: Log = "",
    mixers: Mixers = None,
    runs: Runs = Path("runs"),
    svg: Annotated[Path | None, typer.Option(help="Draw the learning curves to a file.")] = None,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="Write an HTML report.")] = None,
    csv: Annotated[Path | None, typer.Option(help="Write the table to a .csv file.")] = None,
    parquet: Annotated[Path | None, typer.Option(help="Write the table to a .parquet file.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Train architectures on one text and say which learns it best. If interrupted, the same command resumes."""
    arguments = dict(locals())
    from plait.api.compare import compare

    _check_files(svg, out, csv, parquet)
    saved = "finished training is saved"
    with within_time(budget or None), resumable(saved), progress_bar(quiet=as_json) as on_progress:
        result = compare(
            **passed(
                arguments, "budget", "no_rate_search", "length", "svg", "out", "csv", "parquet", "as_json",
                architectures=architectures or [], time=budget or None, at=at or None, match=match or None,
                search_rates=not no_rate_search, seq_len=length or seq_len,
            ),
            on_progress=on_progress,
        )  # fmt: skip
    print_result(result, print_comparison, as_json=as_json)
    _write_files(result, svg, out, csv, parquet)  # last, so that an unwritable path loses no results
    wrote(csv, parquet, svg, out, as_json=as_json)


def _check_files(svg: Path | None, out: Path | None, csv: Path | None, parquet: Path | None) -> None:
    """Check before the training that the output files can be written."""
    from plait.core.errors import UserError
    from plait.reporting.page import check_writable

    for path in (svg, out, csv, parquet):
        if path is not None:
            check_writable(path)
    for path, ending in ((csv, ".csv"), (parquet, ".parquet")):
        if path is not None and path.suffix != ending:
            raise UserError(f"--{ending[1:]} {path}: give a file whose name ends with {ending}.")


def _write_files(
    result: CompareResult, svg: Path | None, out: Path | None, csv: Path | None, parquet: Path | None
) -> None:
    from plait.records.export import write_rows
    from plait.reporting import comparison
    from plait.reporting.page import write

    for path in (csv, parquet):
        if path is not None:
            write_rows(result.rows(), path)
    if svg is not None:
        result.save_svg(svg)
    if out is not None:
        write(out, comparison.comparison_page(result.comparison))


def print_comparison(result: CompareResult) -> None:
    from plait.reporting import comparison as shown

    out, compared = console(), result.comparison
    grid = _table(result)
    if not fits(out, grid):
        grid = _table(result, wide=False)
    out.print(grid)
    paragraph(out, shown.reading(compared), "dim")
    for note in compared.notes:
        paragraph(out, note, "dim")
    out.print(
        f"\n{curves_of_characters(shown.learning_curves(compared.architectures))}",
        markup=False,
        no_wrap=True,
        overflow="crop",
    )
    paragraph(out, f"\n{shown.verdict_sentence(compared)}", "bold")
    if result.foresight:
        paragraph(out, f"At other budgets: {result.foresight}.")
    cost = compared.cost
    out.print(f"{duration(cost.seconds)}; {duration(cost.trained_seconds)} of training in total", style="dim")


def curves_of_characters(curves: Sequence[Series]) -> str:
    """Learning curves in characters, a letter per architecture; letters of overlapping curves alternate."""
    import numpy as np

    from plait.cli.output import WIDE, character_plot

    letters = dict(zip((curve.name for curve in curves), string.ascii_letters, strict=False))
    marks = []
    for place, curve in enumerate(curves):
        if curve.name not in letters:  # more curves than letters: only in the table
            continue
        x, y = [math.log(tokens) for tokens in curve.x], list(curve.y)
        columns = [x[0], *np.linspace(x[0], x[-1], WIDE)[place :: len(curves)], x[-1]]
        marks += [(math.exp(at), float(np.interp(at, x, y)), letters[curve.name]) for at in columns]
    names = "   ".join(f"{letter} {name}" for name, letter in letters.items())
    drawn = character_plot(marks, "tokens", "loss")
    return f"{drawn}\n{'':10}{names}" if names else drawn


def _table(result: CompareResult, wide: bool = True) -> Table:
    """Lowest loss first; if `wide`, with rate, tokens and parameters."""
    from plait.reporting import comparison as shown

    sizes = {"lr": "right", "tokens": "right", "params": "right"} if wide else {}
    grid = table(architecture="left", loss="right", **{"P(best)": "right"}, **sizes, above_best="right", verdict="left")
    for row in shown.ranking(result.comparison):
        arch = row.architecture
        grid.add_row(
            plain(arch.name),
            row.loss_text(),
            row.chance_text(),
            *((f"{arch.lr:.3g}", short(arch.tokens), short(arch.params)) if wide else ()),
            row.difference_text(),
            VERDICTS.get(row.verdict, row.verdict),
            style="bold" if arch.name in result.best else "",
        )
    return grid
