"""`plait study placement`: perplexity against the number of attention blocks, and against p."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from plait.cli.analyse_table import floats
from plait.cli.options import AsJson, FormerLength, Mixers, Runs, StoreUrl, Text
from plait.cli.output import console, plain, print_json, table
from plait.cli.study_progress import progress
from plait.reporting.page import short
from plait.training.devices import precision_on, usable

if TYPE_CHECKING:
    from plait.studies.placement import PlacementFindings


def placement(
    p: Annotated[str, typer.Option("--p", help="Layers for one attention block, of the PAR rule.")] = "2,3,4,6,8",
    spec: Annotated[list[str] | None, typer.Option(help="Another architecture to compare; any number.")] = None,
    k: Annotated[int | None, typer.Option(min=1, help="Of the sandwich. \\[default: 3/8 of its pairs]")] = None,
    layers: Annotated[int, typer.Option(help="Of every pattern; even.")] = 12,
    width: Annotated[int, typer.Option(min=2, help="Of the model.")] = 48,
    heads: Annotated[int, typer.Option(min=1, help="Of an attention block.")] = 4,
    inner: Annotated[int, typer.Option(min=1, help="Inner width of a feed-forward block.")] = 192,
    data: Text = "builtin:stdlib",
    steps: Annotated[int, typer.Option(min=1, help="Optimizer steps of each training.")] = 150,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings of each pattern.")] = 3,
    batch: Annotated[int, typer.Option(min=1, help="Sequences per step.")] = 8,
    seq_len: Annotated[int, typer.Option(min=1, help="Tokens of a sequence.")] = 64,
    length: FormerLength = None,
    lr: Annotated[float, typer.Option(help="Peak learning rate.")] = 3e-3,
    svg: Annotated[Path | None, typer.Option(help="Draw perplexity against attention blocks.")] = None,
    device: Annotated[str, typer.Option(help="Where models are trained: cpu or cuda.")] = "cpu",
    runs: Runs = Path("runs"),
    mixers: Mixers = None,
    store: StoreUrl = None,
    as_json: AsJson = False,
) -> None:
    """Train patterns with more and less attention and compare them. Interrupted, the same command goes on."""
    from plait.data import open_corpus
    from plait.records import open_store
    from plait.studies.placement import RECIPE, PlacementStudy, Shape, patterns_of

    usable(device)  # before a long text is read
    corpus = open_corpus(data)
    patterns = patterns_of(corpus, Shape(layers, width, heads, inner), floats(p, "--p"), spec or (), k)
    recipe = RECIPE.with_values({"batch": batch, "seq_len": seq_len, "lr": lr})
    study = PlacementStudy(patterns, corpus, steps, seeds, recipe, device, precision_on(device))
    with open_store(store) as opened, progress(study.models, quiet=as_json) as watch:
        found = study.run(opened, runs, watch)
    print_json(found.as_dict()) if as_json else _print(found)
    if svg is not None:  # last: a place that cannot be written to costs no results
        _draw(svg, found)


def _print(found: PlacementFindings) -> None:
    study, out = found.study, console()
    out.print(f"{study.models} trainings of {study.steps} steps on {study.corpus.name}")
    shown = {"pattern": "left", "layers": "left", "attention": "right", "p": "right", "loss": "right"}
    shown |= {"perplexity": "right", f"against_{found.baseline.pattern.name}": "right", "FLOPs_a_token": "right"}
    made = table(**shown)
    for row in found.rows:
        one, change = row.pattern, row.against(found.baseline)
        numbers = (str(one.attention), f"{one.p:.3g}" if one.p else "–", f"{row.loss:.4f}", f"{row.perplexity:.3f}")
        made.add_row(
            plain(one.name), one.letters, *numbers, "" if row is found.baseline else str(change), short(row.flops)
        )
    out.print(made)
    out.print(found.statement, soft_wrap=True)


def _draw(path: Path, found: PlacementFindings) -> None:
    from plait.reporting.axes import Axis
    from plait.reporting.charts import Series, xy_chart
    from plait.reporting.svg import save

    # The rule's patterns are one curve over p; every other pattern is a point of its own.
    families: dict[str, list[tuple[int, float]]] = {}
    for row in found.rows:
        name = "par" if row.pattern.name.startswith("par p=") else row.pattern.name
        families.setdefault(name, []).append((row.pattern.attention, row.perplexity))
    curves = [
        Series(name, [blocks for blocks, _ in sorted(points)], [perplexity for _, perplexity in sorted(points)])
        for name, points in families.items()
    ]
    title = f"Perplexity by attention blocks of {len(found.baseline.pattern.letters)} layers"
    save(xy_chart(curves, title=title, x=Axis("attention blocks"), y=Axis("perplexity")), path)
