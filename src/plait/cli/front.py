"""`plait front show | pick | score | table | candidates`: the front of a search, and the best model within limits."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from plait.cli.options import AsJson, Mixers, StoreUrl, Tokenizer, limit_options
from plait.cli.output import console, passed, plain, print_json, print_result, progress_bar, table, wrote
from plait.cli.search import cell, print_front
from plait.core import defaults
from plait.core.units import readable, short
from plait.device.quantities import in_rows, on_device

group = typer.Typer(
    help="Show a search's Pareto front, pick a model, score it, print it as a table.", no_args_is_help=True
)

Key = Annotated[str, typer.Argument(help="Key of the search, or a prefix of it.")]
Count = Annotated[int, typer.Option("--front", min=0, help="Number of models; 0: the whole front.")]
LATEST = "latest"


@group.command()
def show(
    key: Key = LATEST,
    front: Count = defaults.FRONT,
    svg: Annotated[Path | None, typer.Option(help="Also draw it to this file.")] = None,
    cube: Annotated[
        Path | None, typer.Option("--3d", help="Draw the first three objectives in 3D to this file.")
    ] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the Pareto front of a search, predicted and measured."""
    from plait.api.front import show as show_front

    result = show_front(key, front=front, svg=svg, cube=cube, mixers=mixers or (), store=store)
    print_result(result, print_front, svg, cube, as_json=as_json)


@group.command()
@limit_options(after="key", otherwise="the search's")
def pick(
    key: Key = LATEST,
    *,
    by: Annotated[str, typer.Option(help="Column to pick by. \\[default: the search's first objective]")] = "",
    no_validate: Annotated[bool, typer.Option("--no-validate", help="Predict only; measure nothing.")] = False,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
    **limits: str | None,
) -> None:
    """Print the spec of the best model within the limits, for plait train "$(plait front pick)".

    It is measured first; if it exceeds a limit, the next best is tried."""
    from plait.api.front import pick as best_of
    from plait.searching.picking import value_of
    from plait.space.space import COLUMNS

    with progress_bar(quiet=as_json) as on_progress:
        best = best_of(
            key, by=by, measure=not no_validate, mixers=mixers or (), store=store, on_progress=on_progress,
            **limits,
        )  # fmt: skip
    if as_json:
        print_json(best.as_dict())
        return
    words = [f"{best.by} {readable(value_of(best.row, best.by))}"]
    quantities = [(quantity, value_of(best.row, of)) for of, quantity in in_rows([best.row]).items()]
    words += [f"{readable(value)} {quantity.unit}" for quantity, value in quantities if value is not None]
    counted = best.by in COLUMNS or best.by.endswith("decoder_params")
    exact = counted and all(value is None for _, value in quantities)  # all objectives of the search are exact counts
    basis = "measured" if best.is_measured else "exact" if exact else "predicted, not measured"
    note = f"{', '.join(words)} ({basis}); the best of {best.among} that meet the limits"
    console(stderr=True).print(note, style="dim")
    print(best.spec)


@group.command()
def score(
    key: Key = LATEST,
    *,
    by: Annotated[str, typer.Option(help="snip, grad_norm, … (`plait list objectives`), short_training or compare.")],
    data: Annotated[str, typer.Option(help="Text to score on; `plait data list`.")] = "builtin:stdlib",
    tokenizer: Tokenizer = None,
    front: Count = defaults.FRONT,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the weights.")] = 0,
    budget: Annotated[str | None, typer.Option("--time", help="Total time of compare. \\[default: 10m]")] = None,
    runs: Annotated[Path, typer.Option(help="Folder of compare's trainings.")] = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Score a front by what is too expensive during a search: a proxy, a short training, or a comparison."""
    arguments = dict(locals())
    from plait.api.front import score as scored

    with progress_bar(quiet=as_json) as on_progress:
        result = scored(**passed(arguments, "budget", "as_json", time=budget), on_progress=on_progress)
    if as_json:
        print_json(result.as_dict())
        return
    shown = [name for name in result.models[0] if name not in ("on_front", "spec")]
    grid = table(**{"": "left"}, **{name.replace("_", "-"): "right" for name in shown}, spec="left")
    for row in result.models:
        cells = ("–" if row[name] is None else short(row[name]) for name in shown)
        grid.add_row("→" if row["on_front"] else "", *cells, plain(row["spec"]))
    console().print(grid)
    models = f"{len(result.models)} models by {result.by} on {result.data}"
    note = f"{models}, more is better; → no other has a higher score and "
    console().print(f"{note}is as good in the search's other objectives", style="dim", markup=False)


@group.command("table")
def as_table(
    key: Key = LATEST,
    front: Count = defaults.FRONT,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the front like the papers' tables: widths, heads and inner width layer by layer."""
    from plait.api.front import table as table_of

    result = table_of(key, front=front, mixers=mixers or (), store=store)
    if as_json:
        print_json(result.as_dict())
        return
    shown = [name for name in result.models[0] if name != "measured"]
    right = ("n_layer", "d_model", "decoder_params", *(quantity.column for quantity in on_device().values()))
    grid = table(**{name.replace("_", "-"): "right" if name in right else "left" for name in shown})
    for entry in result.models:
        grid.add_row(*(_cell(name, entry[name], entry["measured"]) for name in shown))
    console().print(grid)


@group.command()
def candidates(
    key: Key = LATEST,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", "--output", help="A .csv or .jsonl file. \\[default: print CSV]")
    ] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print every candidate that a search evaluated: objectives, whether it is on the front, spec."""
    from plait.api.front import candidates as compared
    from plait.api.front import check_ending

    if out is not None:
        check_ending(out)
    result = compared(key, mixers=mixers or (), store=store)
    if out is not None:
        result.save(out)
    if as_json:
        print_json(result.as_dict())
    elif out is None:
        print(result.csv(), end="")
    kept = len(result.candidates)
    of = "" if kept == result.evaluated else f" of {result.evaluated:,}; a record keeps the first"
    note = f"{kept:,} candidates of search {result.key[:10]}{of}"
    console(stderr=True).print(note, style="dim", markup=False)
    wrote(out, as_json=as_json)


def _cell(name: str, value: Any, measured: bool) -> str:
    """`~` marks what is only predicted."""
    if name == "decoder_params":
        return short(value)
    if isinstance(value, str | int | list):
        return cell(value)
    return readable(value) if measured or value is None else f"~{readable(value)}"
