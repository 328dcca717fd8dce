"""`plait study …`: studies that train many models. `proxies`: which cheap numbers foretell how well models train."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli import study_lr, study_placement, study_shapes
from plait.cli.options import AsJson, FormerLength, Mixers, Runs, StoreUrl, Text
from plait.cli.output import console, print_json, table
from plait.cli.study_progress import progress
from plait.reporting.page import short
from plait.training.devices import precision_on, usable

if TYPE_CHECKING:
    from plait.studies.proxies import Findings

group = typer.Typer(help="Studies that train many small models.", no_args_is_help=True)


@group.callback()
def studies() -> None:
    """Studies that train many small models."""


@group.command("proxies")
def command(
    space: Annotated[str, typer.Option(help="study-gpt2, study-hybrid, a space's name or file.")] = "study-gpt2",
    models: Annotated[int, typer.Option(help="Models to draw and train.")] = 40,
    data: Text = "builtin:stdlib",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each training.")] = 200,
    proxies: Annotated[str, typer.Option(help="Only these, separated by commas; none: counts alone.")] = "",
    batch: Annotated[int, typer.Option(min=1, help="Sequences per step.")] = 8,
    seq_len: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 64,
    length: FormerLength = None,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 6e-3,
    seed: Annotated[int, typer.Option(min=0, help="Of the draw, the weights and the order of the data.")] = 0,
    device: Annotated[str, typer.Option(help="Where models are trained: cpu or cuda.")] = "cpu",
    svg: Annotated[Path | None, typer.Option(help="Draw rank correlation over what each proxy costs.")] = None,
    runs: Runs = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Train models of a space and tell how well every proxy ranks them. Interrupted, the same command goes on."""
    from plait.algorithms.proxies import PROXIES
    from plait.data import open_corpus
    from plait.records import open_store
    from plait.studies.proxies import RECIPE, Study, study_space

    named = tuple(name.strip() for name in proxies.split(",") if name.strip())
    chosen = () if named == ("none",) else named or tuple(PROXIES)
    recipe = RECIPE.with_values({"batch": batch, "seq_len": seq_len, "lr": lr})
    space_, corpus, precision = study_space(space), open_corpus(data), precision_on(usable(device))
    study = Study(space_, corpus, models, steps, chosen, recipe, seed, device, precision)
    with open_store(store) as opened, progress(study.models, quiet=as_json) as watch:
        found = study.run(opened, runs, watch)
    print_json(found.as_dict()) if as_json else _print(found)
    if svg is not None:  # last: a place that cannot be written to costs no results
        _draw(svg, found)


for each in (study_placement.placement, study_lr.lr, study_shapes.shapes):
    group.command()(each)


def _print(found: Findings) -> None:
    from plait.studies.proxies import TOPS, best

    study, out = found.study, console()
    low, high = found.spread
    cost = sum(row["train_flops"] for row in found.rows)
    out.print(
        f"[bold]{study.space.name}[/]: {len(found.rows)} models, {study.steps} steps each on {study.corpus.name}; "
        f"held-out loss {low:.3f} to {high:.3f} nats per token; {short(cost)}FLOP"
    )
    made = table(proxy="left", SRC="right", interval="right", **{f"CR@{top}%": "right" for top in TOPS}, cost="right")
    for one in found.rankings:
        free = "free" if not one.cost else f"{100 * one.cost:.2g} %"
        interval = "{:.2f} … {:.2f}".format(*one.interval) if one.interval else ""
        ratios = [f"{one.common[top]:.2f}" for top in TOPS]
        made.add_row(one.proxy, f"{one.src:.2f}", interval, *ratios, free)
    out.print(made)
    out.print(best(found.rankings))


def _draw(path: Path, found: Findings) -> None:
    from plait.reporting.studies import ProxyCost, proxy_cost_figure
    from plait.reporting.svg import save

    study = found.study
    unknown = (math.nan, math.nan)  # drawn without a whisker
    proxies = [ProxyCost(one.proxy, one.src, *(one.interval or unknown), one.cost) for one in found.rankings]
    below = f"{len(found.rows)} models of {study.space.name}, {study.steps} steps each on {study.corpus.name}"
    save(proxy_cost_figure(proxies, title="How well proxies rank, by what they cost", below=below), path)
