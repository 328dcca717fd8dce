"""Results of studies in the terminal and as figures, and their progress bar."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from plait.cli.output import console, paragraph, plain, print_rows, progress_bar, table
from plait.core.progress import OnProgress, Stopped
from plait.core.units import percent, short
from plait.device.quantities import in_rows

if TYPE_CHECKING:
    from plait.studies.lr_sweep import SweepFindings
    from plait.studies.placement import PlacementFindings
    from plait.studies.proxies import Findings
    from plait.studies.shapes import ShapeFindings
    from plait.studies.verdict import VerdictFindings


@contextmanager
def study_progress(*, quiet: bool) -> Iterator[OnProgress]:
    """A progress bar over the models, and the message of an interrupted study."""
    try:
        with progress_bar(quiet=quiet) as bar:
            yield lambda what, done, total: bar(f"{what:14} {int(done)} of {total} models", done, total)
    except KeyboardInterrupt as stopped:
        saved = stopped.saved if isinstance(stopped, Stopped) else "finished work is stored"
        console(stderr=True).print(f"interrupted; {saved}. The same command resumes.")
        raise typer.Exit(130) from None


def print_proxies(result: Findings) -> None:
    from plait.studies.proxies import TOPS, best, cost_text

    study, out = result.study, console()
    low, high = result.spread
    cost = sum(row["train_flops"] for row in result.rows)
    out.print(
        f"[bold]{study.space.name}[/]: {len(result.rows)} models, {study.steps} steps each on {study.corpus.name}; "
        f"validation loss {low:.3f} to {high:.3f} nats per token; {short(cost)}FLOP"
    )
    grid = table(proxy="left", SRC="right", interval="right", **{f"CR@{top} %": "right" for top in TOPS}, cost="right")
    for ranking in result.rankings:
        free = "free" if not ranking.cost else cost_text(ranking.cost)
        interval = "{:.2f} … {:.2f}".format(*ranking.interval) if ranking.interval else ""
        ratios = [f"{ranking.common[top]:.2f}" for top in TOPS]
        grid.add_row(ranking.proxy, _correlation(ranking.src), interval, *ratios, free)
    out.print(grid)
    out.print(
        "SRC: Spearman rank correlation with the validation loss, with its 95 % interval; CR@k %: share of the true "
        "top k % that is in the proxy's; cost: as a share of the training FLOPs",
        style="dim",
    )
    out.print(result.noise_statement, style="dim")
    paragraph(out, best(result))


def _correlation(value: float) -> str:
    """Two digits; – where all values are the same, so that there is nothing to rank."""
    return "–" if math.isnan(value) else f"{value:.2f}"


def draw_proxies(path: Path, result: Findings) -> None:
    from plait.reporting.studies import ProxyCost, proxy_cost_figure
    from plait.reporting.svg import save

    study = result.study
    unknown = (math.nan, math.nan)  # drawn without a whisker
    proxies = [
        ProxyCost(ranking.proxy, ranking.src, *(ranking.interval or unknown), ranking.cost)
        for ranking in result.rankings
    ]
    below = f"{len(result.rows)} models of {study.space.name}, {study.steps} steps each on {study.corpus.name}"
    save(proxy_cost_figure(proxies, title="How well proxies rank, against their cost", below=below), path)


def print_placement(result: PlacementFindings) -> None:
    study, out = result.study, console()
    out.print(f"{study.models} trainings of {study.steps} steps on {study.corpus.name}")
    shown = {"pattern": "left", "layers": "left", "attention": "right", "p": "right", "loss": "right"}
    shown |= {"perplexity": "right", f"against_{result.baseline.pattern.name}": "right", "FLOPs_per_token": "right"}
    grid = table(**shown)
    for row in result.rows:
        pattern, change = row.pattern, result.change(row)
        numbers = (
            str(pattern.attention),
            f"{pattern.p:.3g}" if pattern.p else "–",
            f"{row.loss:.4f}",
            f"{row.perplexity:.3f}",
        )
        grid.add_row(
            plain(pattern.name),
            pattern.letters,
            *numbers,
            "" if row is result.baseline else str(change),
            short(row.flops),
        )
    out.print(grid)
    own = [row.pattern for row in result.rows if row.pattern.name.startswith("given ")]
    letters = "s attention" if not own else "s attention or another sequence mixer"
    out.print(f"layers: {letters}, f feed-forward; p: layers per attention block", style="dim")
    for pattern in own:
        out.print(f"{pattern.name}: {pattern.arch.text}", style="dim", markup=False, soft_wrap=not out.is_terminal)
    if result.noise is not None:
        note = f"standard deviation between seeds {result.noise:.4f} nats; smaller differences are not distinguishable"
        out.print(note, style="dim")
    paragraph(out, result.statement)


def draw_placement(path: Path, result: PlacementFindings) -> None:
    from plait.reporting.axes import Axis
    from plait.reporting.charts import Series, xy_chart
    from plait.reporting.svg import save

    # PAR patterns are one curve over p; every other pattern is a single point.
    families: dict[str, list[tuple[int, float]]] = {}
    for row in result.rows:
        name = "par" if row.pattern.name.startswith("par p=") else row.pattern.name
        families.setdefault(name, []).append((row.pattern.attention, row.perplexity))
    curves = [
        Series(name, [blocks for blocks, _ in sorted(points)], [perplexity for _, perplexity in sorted(points)])
        for name, points in families.items()
    ]
    title = f"Perplexity by attention blocks of {len(result.baseline.pattern.letters)} layers"
    save(xy_chart(curves, title=title, x=Axis("attention blocks"), y=Axis("perplexity")), path)


def print_lr(result: SweepFindings) -> None:
    study, out = result.study, console()
    by_model = {(row["spec"], row["lr"]): row["loss"] for row in result.means}
    shown = {f"{row.rate:g}": "right" for row in study.rates}
    sizes = {row["spec"]: row["decoder_params"] for row in result.means}
    rows = [
        {
            "decoder_params": f"{sizes[spec]:,}",
            **{f"{row.rate:g}": f"{by_model[spec, row.rate]:.3f}" for row in study.rates},
            "best": f"{best:g}",
            "architecture": plain(spec.partition("|")[2].strip()),
        }
        for spec, best in sorted(
            zip(study.models, study.best_rate.tolist(), strict=True), key=lambda pair: sizes[pair[0]]
        )
    ]
    sides = {"decoder_params": "right", **shown, "best": "right", "architecture": "left"}
    print_rows(sides, rows, long=["architecture"])
    out.print()
    rates = table(rate="right", best_for="right", share="right", SRC="right", SRC_with_best="right")
    for row in study.rates:
        rates.add_row(
            f"{row.rate:g}", str(row.wins), percent(row.share), _correlation(row.src), _correlation(row.src_best)
        )
    out.print(rates)
    out.print(
        f"validation loss in nats per token, mean of {result.sweep.seeds} seed{'s' * (result.sweep.seeds != 1)}; SRC: "
        "rank correlation of decoder parameters with a low loss at this rate; SRC with best: of this loss with the "
        "loss at each one's best rate",
        style="dim",
    )
    paragraph(out, result.statement())


def print_verdict(result: VerdictFindings) -> None:
    out, truth = console(), result.table.truth
    grid = table(architecture="left", params="right", loss="right")
    for place in truth.argsort().tolist():
        grid.add_row(result.table.names[place], f"{result.contenders[place].params:,}", f"{truth[place]:.3f}")
    out.print(grid)
    out.print()
    signals = table(signal="left", rank_correlation="right", picks="left", above_best="right", cost="right")
    for signal in result.signals:
        ends = " ({:.2f} to {:.2f})".format(*signal.interval) if signal.interval else ""
        signals.add_row(
            signal.name, f"{signal.spearman:.2f}{ends}", signal.pick, f"{signal.regret:.3f}", percent(signal.cost)
        )
    out.print(signals)
    out.print("validation loss in nats per token; cost: as a share of training all to the end", style="dim")
    for note in result.notes:
        paragraph(out, note, style="yellow")
    paragraph(out, result.statement())


def print_shapes(result: ShapeFindings) -> None:
    trained = "loss" in result.rows[0]
    columns = {"d_model": "right", "n_layer": "right", "aspect": "right", "decoder_params": "right"}
    shown = list(in_rows(result.rows).values())
    columns |= {**{quantity.unit: "right" for quantity in shown}, **({"perplexity": "right"} if trained else {})}
    rows = []
    for row in result.rows:
        cells = [str(row["d_model"]), str(row["n_layer"]), f"{row['aspect']:.3g}", f"{row['decoder_params']:,}"]
        cells += [f"{row[quantity.column]:.3g}" for quantity in shown]
        cells[-len(shown)] += "*" if row["noisy"] else ""
        cells += [f"{row['perplexity']:.4g}"] if trained else []
        rows.append(
            dict(zip([*columns, "layers"], [*cells, plain(row["spec"].partition("|")[2].strip())], strict=True))
        )
    out = console()
    print_rows({**columns, "layers": "left"}, rows, long=["layers"])
    if any(row["noisy"] for row in result.rows):
        out.print("* noisy: the machine was busy", style="yellow")
    paragraph(out, result.statement())
