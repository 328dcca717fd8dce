"""`plait analyse …`: what a table of results says, whoever made it."""

from __future__ import annotations

import typer

from plait.cli import analyse_fronts, analyse_ranks

group = typer.Typer(help="Fronts, rankings, twins and savings in any table of results.", no_args_is_help=True)
for command in (
    *(analyse_ranks.src, analyse_ranks.heatmap, analyse_fronts.front, analyse_fronts.dominated),
    *(analyse_fronts.hypervolume, analyse_fronts.davg, analyse_fronts.twins, analyse_fronts.savings),
    *(analyse_ranks.aspect, analyse_ranks.lr),
):
    group.command()(command)
