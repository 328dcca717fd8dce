"""`plait analyse …`: what a table of results says, whoever made it, and what found architectures have in common."""

from __future__ import annotations

import typer

from plait.cli import analyse_fronts, analyse_layers, analyse_missing, analyse_ranks, analyse_records

group = typer.Typer(
    help="Fronts, rankings, matched pairs and savings in any table of results; patterns in found layers.",
    no_args_is_help=True,
)
for command in (
    *(analyse_ranks.ranks, analyse_ranks.heatmap, analyse_fronts.front, analyse_fronts.dominated),
    *(analyse_fronts.hypervolume, analyse_fronts.front_distance, analyse_fronts.matched_pairs, analyse_fronts.savings),
    *(analyse_ranks.aspect, analyse_ranks.lr, analyse_layers.layers, analyse_missing.infer),
    *(analyse_records.difficulty, analyse_records.accuracy),
):
    group.command()(command)
#: As earlier releases called them.
for old, command in (
    ("src", analyse_ranks.ranks),
    ("davg", analyse_fronts.front_distance),
    ("twins", analyse_fronts.matched_pairs),
):
    group.command(old, hidden=True)(command)
