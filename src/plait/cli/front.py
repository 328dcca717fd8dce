"""`plait front show | pick | table | candidates`: what a search found, and the one model to go on with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from plait.cli.front_display import cell, print_front
from plait.cli.options import AsJson, Mixers, StoreUrl, limit_options
from plait.cli.output import console, print_json, progress_bar, table
from plait.device.quantities import in_rows, on_device
from plait.reporting.page import said, short

if TYPE_CHECKING:
    from plait.space.limits import Limits

group = typer.Typer(help="Show a search's front, pick a model from it, print it as a table.", no_args_is_help=True)

Key = Annotated[str, typer.Argument(help="Of the search, or enough of its beginning.")]
Count = Annotated[int, typer.Option("--front", min=0, help="How many models; 0: the whole front.")]
LATEST = "latest"
SHOWN = 16


@group.command()
def show(
    key: Key = LATEST,
    front: Count = SHOWN,
    svg: Annotated[Path | None, typer.Option(help="Also draw it into this file.")] = None,
    cube: Annotated[
        Path | None, typer.Option("--3d", help="Draw the first three objectives in three dimensions into this file.")
    ] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Show the front of a search, predicted beside measured."""
    from plait.api.front import show as show_front

    found = show_front(key, front=front, svg=svg, cube=cube, mixers=mixers or (), store=store).as_dict()
    print_json(found) if as_json else print_front(found)


@group.command()
@limit_options(otherwise="the search's")
def pick(
    key: Key = LATEST,
    *,
    limits: Limits,
    by: Annotated[str, typer.Option(help="The best in what. \\[default: the search's first objective]")] = "",
    no_validate: Annotated[bool, typer.Option("--no-validate", help="Predict only; measure nothing.")] = False,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the spec of one model: the best that holds the limits. Made for plait train "$(plait front pick)".

    It is measured first, and gives way to the next best where it does not hold them after all."""
    from plait.api.front import pick as best_of
    from plait.api.front import value_of

    with progress_bar(quiet=as_json) as on_progress:
        best = best_of(
            key, by=by, measure=not no_validate, mixers=mixers or (), store=store, on_progress=on_progress,
            **limits.as_dict(),
        )  # fmt: skip
    if as_json:
        print_json(best.as_dict())
        return
    words = [f"{best.by} {said(value_of(best.row, best.by))}"]
    shown = ((each, value_of(best.row, of)) for of, each in in_rows([best.row]).items())
    words += [f"{said(value)} {each.unit}" for each, value in shown if value is not None]
    basis = "measured" if best.is_measured else "predicted, not measured"
    told = f"{', '.join(words)} ({basis}); the best of {best.among} that hold the limits"
    console(stderr=True).print(told, style="dim")
    print(best.spec)


@group.command("table")
def as_table(
    key: Key = LATEST,
    front: Count = SHOWN,
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Print the front as the paper's tables do: widths, and heads and inner width layer by layer."""
    from plait.api.front import table as table_of

    found = table_of(key, front=front, mixers=mixers or (), store=store)
    if as_json:
        print_json(found.as_dict())
        return
    shown = [name for name in found.models[0] if name != "measured"]
    right = ("n_layer", "d_model", "decoder_params", *(each.column for each in on_device().values()))
    made = table(**{name.replace("_", "-"): "right" if name in right else "left" for name in shown})
    for entry in found.models:
        made.add_row(*(_cell(name, entry[name], entry["measured"]) for name in shown))
    console().print(made)


@group.command()
def candidates(
    key: Key = LATEST,
    out: Annotated[Path | None, typer.Option("-o", "--out", help="A .csv or .jsonl file; else CSV is printed.")] = None,
    mixers: Mixers = None,
    store: StoreUrl = None,
) -> None:
    """Print every candidate that a search compared: its objectives, whether it is on the front, its spec."""
    from plait.api.front import candidates as compared
    from plait.api.front import check_ending

    if out is not None:
        check_ending(out)
    found = compared(key, mixers=mixers or (), store=store)
    if out is None:
        print(found.csv(), end="")
    else:
        found.save(out)
    kept = len(found.candidates)
    of = "" if kept == found.evaluated else f" of {found.evaluated:,}; a record keeps the first"
    told = f"{kept:,} candidates of search {found.key[:10]}{of}{f' in {out}' if out else ''}"
    console(stderr=True).print(told, style="dim", markup=False)


def _cell(name: str, value: Any, measured: bool) -> str:
    """`~` marks what is only predicted."""
    if name == "decoder_params":
        return short(value)
    if isinstance(value, str | int | list):
        return cell(value)
    return said(value) if measured or value is None else f"~{said(value)}"
