"""`plait analyse …`: analyses of a table of results from any source, and of architectures found by searches."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import plait
from plait.cli.options import AsJson, Mixers, StoreUrl
from plait.cli.output import FittingTable, console, fits, plain, print_result

if TYPE_CHECKING:
    from rich.table import Table

    from plait.api.analyse_table import Analysis, Row

group = typer.Typer(
    help="Pareto fronts, rank correlations, matched pairs and savings in any table of results; placement patterns.",
    no_args_is_help=True,
)

File = Annotated[str, typer.Argument(metavar="FILE", help="A .csv, .json, .jsonl or .parquet file, or a store's URL.")]
Where = Annotated[list[str] | None, typer.Option(help="Only these rows: column=value, or with != < <= > >=.")]
Label = Annotated[str | None, typer.Option(help="The column that names a row. \\[default: the first known one]")]
Lower = Annotated[str, typer.Option(help="Columns in which lower is better, whatever their names suggest.")]
Higher = Annotated[str, typer.Option(help="Columns in which higher is better, whatever their names suggest.")]
Minimise = Annotated[str, typer.Option(help="Columns to minimise, separated by commas.")]
Maximise = Annotated[str, typer.Option(help="Columns to maximise.")]
Quality = Annotated[str, typer.Option(help="The column with the true quality, such as the perplexity.")]
Hull = Annotated[bool, typer.Option("--hull", help="Only the corners of the lower convex hull (two columns).")]
Proxy = Annotated[str, typer.Option(help="The column with the proxy.")]
Bins = Annotated[
    str | None, typer.Option(help="SRC by size: the number of bins with equally many models, or the bins' edges.")
]
BinBy = Annotated[str | None, typer.Option(help="The column with the size for the bins. \\[default: the proxy]")]
Keys = Annotated[
    list[str] | None,
    typer.Argument(
        help="Keys of searches by gumbel, or prefixes of them; or JSON files with such seeds. The seeds of several "
        "are pooled. \\[default: the latest search]",
    ),
]


def show(verb: Callable[..., Analysis], arguments: dict[str, Any]) -> None:
    """Call the verb with a command's arguments and print its document as JSON, or its tables and notes."""
    as_json = arguments.pop("as_json")
    print_result(verb(**arguments), _print, arguments.get("svg"), as_json=as_json)


def _print(result: Analysis) -> None:
    out = console()
    for rows in result.tables.values():
        if rows:
            drawn = _table(rows, list(rows[0]))
            # Headings that must wrap do so between words.
            words = [name.replace("_", " ") for name in rows[0]]
            out.print(drawn if fits(out, drawn) else _table(rows, words))
            out.print()
    for note in result.notes:
        if note:
            out.print(note, markup=False, soft_wrap=True)


def _table(rows: list[Row], headings: list[str]) -> Table:
    from plait.api.analyse_table import cell

    drawn = FittingTable(header_style="bold", pad_edge=False, box=None)
    for name, heading in zip(rows[0], headings, strict=True):
        number = all(isinstance(row[name], (int, float, type(None))) for row in rows)
        drawn.add_column(heading, justify="right" if number else "left")
    for row in rows:
        drawn.add_row(*(plain(cell(value)) for value in row.values()))
    return drawn


@group.command()
def ranks(
    file: File,
    proxy: Proxy,
    truth: Annotated[str, typer.Option(help="The column with the true quality.")],
    top: Annotated[str, typer.Option(help="SRC and common ratio among the top k %.")] = "10,20,50,100",
    bins: Bins = None,
    bin_by: BinBy = None,
    where: Where = None,
    lower: Lower = "",
    higher: Higher = "",
    as_json: AsJson = False,
) -> None:
    """Measure how well a proxy ranks models: Spearman and Kendall, top k %, by size."""
    show(plait.analyse.ranks, locals())


@group.command()
def heatmap(
    file: File,
    proxies: Annotated[str, typer.Option(help="Columns with proxies, separated by commas.")],
    truths: Annotated[str, typer.Option(help="Columns with the true quality.")],
    subsets: Annotated[str | None, typer.Option(help="Split by the values of this column.")] = None,
    best_per: Annotated[
        str | None, typer.Option(help="The column that names the model; only its best run is used.")
    ] = None,
    where: Where = None,
    lower: Lower = "",
    higher: Higher = "",
    svg: Annotated[Path | None, typer.Option(help="Draw the heat map.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compute the rank correlation (SRC) of several proxies with several ground truths, by subset."""
    show(plait.analyse.heatmap, locals())


@group.command()
def front(
    file: File,
    minimise: Minimise = "",
    maximise: Maximise = "",
    hull: Hull = False,
    where: Where = None,
    label: Label = None,
    as_json: AsJson = False,
) -> None:
    """Find the Pareto front: the rows that no other row dominates."""
    show(plait.analyse.front, locals())


@group.command()
def dominated(
    file: File,
    minimise: Minimise = "",
    maximise: Maximise = "",
    strict: Annotated[bool, typer.Option("--strict", help="Only rows that are worse in every objective.")] = False,
    where: Where = None,
    label: Label = None,
    as_json: AsJson = False,
) -> None:
    """Find the rows of a claimed front that another row dominates."""
    show(plait.analyse.dominated, locals())


@group.command()
def hypervolume(
    file: File,
    minimise: Minimise = "",
    maximise: Maximise = "",
    reference: Annotated[
        str | None,
        typer.Option(help="A value per objective, minimised ones first. \\[default: the worst in the table]"),
    ] = None,
    where: Where = None,
    as_json: AsJson = False,
) -> None:
    """Compute the hypervolume of a front."""
    show(plait.analyse.hypervolume, locals())


@group.command()
def front_distance(
    file: File,
    proxy: Annotated[str, typer.Option(help="The column with the proxy.")],
    cost: Annotated[str, typer.Option(help="The column with the cost, such as the latency; lower is better.")],
    quality: Quality,
    whole_front: Annotated[
        bool, typer.Option("--whole-front", help="Measure against the whole true front, not only its convex hull.")
    ] = False,
    where: Where = None,
    lower: Lower = "",
    higher: Higher = "",
    label: Label = None,
    as_json: AsJson = False,
) -> None:
    """Compute the distance d_avg between a proxy's front and the true one."""
    show(plait.analyse.front_distance, locals())


@group.command()
def matched_pairs(
    file: File,
    equal: Annotated[str, typer.Option(help="Columns that agree, separated by commas.")],
    far: Annotated[str, typer.Option(help="The column that differs.")],
    tolerance: Annotated[float, typer.Option(min=0, help="Values this close agree: 0.01 is 1 %.")] = 0.01,
    ratio: Annotated[float, typer.Option(min=1, help="Minimum ratio of the values that differ.")] = 1.0,
    difference: Annotated[float, typer.Option(min=0, help="Minimum difference, in the column's unit.")] = 0.0,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of pairs to show.")] = 10,
    where: Where = None,
    label: Label = None,
    as_json: AsJson = False,
) -> None:
    """Find matched pairs: rows that agree in some columns and differ most in another."""
    show(plait.analyse.matched_pairs, locals())


@group.command()
def savings(
    file: File,
    baseline: Annotated[str, typer.Option(help="The table with the baseline's models; may be the same file.")],
    cost: Annotated[str, typer.Option(help="Columns with costs, such as latency and memory; lower is better.")],
    quality: Quality,
    where: Where = None,
    baseline_where: Annotated[list[str] | None, typer.Option(help="Only these rows of the baseline.")] = None,
    lower: Lower = "",
    higher: Higher = "",
    label: Label = None,
    svg: Annotated[Path | None, typer.Option(help="Draw both fronts, a panel per cost.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compute what a front saves over a baseline at equal quality."""
    show(plait.analyse.savings, locals())


@group.command()
def aspect(
    file: File,
    metrics: Annotated[str, typer.Option(help="Columns whose spread at equal size to report.")],
    width: Annotated[str, typer.Option(help="The column with the width.")] = "d_model",
    depth: Annotated[str, typer.Option(help="The column with the number of layers.")] = "n_layer",
    size: Annotated[str, typer.Option(help="The column with the size.")] = "decoder_params",
    tolerance: Annotated[float, typer.Option(min=0, help="Sizes this close are equal: 0.02 is 2 %.")] = 0.02,
    where: Where = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the first metric by shape and by the others.")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure how much models of equal size but different shape differ."""
    show(plait.analyse.aspect, locals())


@group.command()
def lr(
    file: File,
    model: Annotated[str, typer.Option(help="The column that names the model.")],
    rate: Annotated[str, typer.Option(help="The column with the learning rate.")],
    quality: Annotated[str, typer.Option(help="The column with the quality; empty for a diverged run.")],
    proxy: Proxy,
    where: Where = None,
    lower: Lower = "",
    higher: Higher = "",
    as_json: AsJson = False,
) -> None:
    """Find which learning rate wins, and whether a fixed one changes the ranking."""
    show(plait.analyse.lr, locals())


@group.command()
def layers(
    keys: Keys = None,
    svg: Annotated[Path | None, typer.Option(help="Draw the probability of each choice in every layer.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Analyse where attention is placed in architectures found by search, and fit a placement pattern."""
    show(plait.analyse.layers, locals())


@group.command()
def infer(
    file: File,
    field: Annotated[str, typer.Option(help="The missing field, such as d_model.")],
    values: Annotated[str, typer.Option(help="Its possible values: 128..960 step 64, or 256|512|1024.")],
    spec: Annotated[
        str, typer.Option(help="The spec of a row, with columns in braces; lists are expanded layer by layer.")
    ],
    printed: Annotated[str, typer.Option(help="The column with the count as printed.")],
    unit: Annotated[float, typer.Option(min=1, help="Unit of that column: 1e6 for millions.")] = 1e6,
    count: Annotated[str, typer.Option(help="What is counted: decoder_params, total_params …")] = "decoder_params",
    allowance: Annotated[float, typer.Option(min=0, help="Tolerance in parameters, beyond rounding.")] = 0,
    where: Where = None,
    label: Label = None,
    as_json: AsJson = False,
) -> None:
    """Infer a missing column from a printed parameter count: unique, ambiguous or none, for each row."""
    show(plait.analyse.infer, locals())


@group.command()
def difficulty(
    tasks: Annotated[str, typer.Option(help="Only these, separated by commas.")] = "",
    suite: Annotated[str, typer.Option(help="Set whose names architectures are shown by.")] = "mad21",
    svg: Annotated[Path | None, typer.Option(help="Draw a figure per task into this folder.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show accuracy against each variable of a task's difficulty, from stored probes."""
    show(plait.analyse.difficulty, locals())


@group.command()
def accuracy(
    where: Annotated[list[str] | None, typer.Option(help="Only measurements with this setting: seq=2048.")] = None,
    svg: Annotated[Path | None, typer.Option(help="Draw accuracy against latency, a panel per task.")] = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the accuracy of models on tasks against their latency, from stored evaluations and measurements."""
    show(plait.analyse.accuracy, locals())


@group.command()
def option(
    name: Annotated[str, typer.Argument(metavar="MIXER.OPTION", help="The option, such as mh-hyena.heads.")],
    kind: Annotated[str, typer.Option(help="Records: train, by the loss, or probe, by the accuracy.")] = "train",
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Find the best value of a mixer's option, from stored trainings or probes that differ in nothing else."""
    show(plait.analyse.option, {**locals(), "mixers": mixers or ()})


#: Names of earlier releases.
for old, command in (("src", ranks), ("davg", front_distance), ("twins", matched_pairs)):
    group.command(old, hidden=True)(command)
