"""`plait scale fit`: scaling laws with error bars."""

from __future__ import annotations

from typing import Annotated

import typer

from plait.cli.options import AsJson
from plait.cli.output import print_json

group = typer.Typer(help="Scaling laws with error bars: plan runs, train them, fit.", no_args_is_help=True)


@group.callback()
def scaling() -> None:
    """Scaling laws with error bars: plan runs, train them, fit."""


@group.command()
def fit(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A .csv, .json, .jsonl or .parquet file of runs.")],
    target: Annotated[str, typer.Option(help="FLOPs at which the best size is asked for, such as 1e20.")],
    where: Annotated[
        list[str] | None, typer.Option(help="Only these rows: column=value, or with != < <= > >=.")
    ] = None,
    draws: Annotated[int, typer.Option(help="Draws of the bootstrap.")] = 1000,
    seed: Annotated[int, typer.Option(min=0, help="Of the bootstrap.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Fit a loss surface, the compute-optimal frontier and IsoFLOP parabolas to runs, with 90 % intervals.

    Columns: flops, params, tokens, loss (nats per token); architecture, active_params, state, attention, batch and
    vocab where they are there.
    """
    from plait.api.scale import fit as verb
    from plait.cli.scale_display import print_fit

    found = verb(file, target=target, where=where, draws=draws, seed=seed)
    print_json(found.as_dict()) if as_json else print_fit(found.laws)
