"""Rankings of models, and what affects them: `plait.analyse.ranks`, `heatmap`, `aspect`, `lr`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from plait.api.analyse_table import (
    Analysis,
    Names,
    analysis,
    direction,
    floats,
    goodness,
    left_out,
    lower_is_better,
    read,
)
from plait.core.files import write_text
from plait.core.registry import names

TOP_COLUMNS = (
    "src: rank correlation (Spearman) among the true top k %; common_ratio: share of them in the proxy's top k %"
)
RATE_COLUMNS = (
    "src: rank correlation of the proxy with the quality at this rate; src_best: of this with the best quality"
)


def ranks(
    file: str,
    *,
    proxy: str,
    truth: str,
    top: str | Sequence[float] = "10,20,50,100",
    bins: str | None = None,
    bin_by: str | None = None,
    where: Sequence[str] | None = None,
    lower: Names = "",
    higher: Names = "",
) -> Analysis:
    """Measure how well a proxy ranks models: Spearman and Kendall, top k %, by size."""
    from plait.analysis import rank
    from plait.analysis.rank import spearman_interval

    table, missing = read(file, where, [proxy, truth, *([bin_by] if bin_by else [])])
    guess, true_values = (goodness(table, name, lower, higher) for name in (proxy, truth))
    interval = spearman_interval(guess, true_values)
    rho, tau = rank.spearman(guess, true_values), rank.kendall(guess, true_values)
    size_bins = []
    if bins:
        edges = int(bins) if bins.isdigit() else floats(bins, "--bins")
        sizes = table.numbers(bin_by or proxy)
        size_bins = [vars(size_bin) for size_bin in rank.spearman_by_size(guess, true_values, sizes, edges)]
    document = {
        "models": len(table),
        "src": rho,
        "interval": list(interval) if interval else None,
        "kendall": tau,
        "top": [
            {
                "percent": percent,
                "models": rank.top_count(len(table), percent),
                "src": rank.top_spearman(guess, true_values, percent),
                "common_ratio": rank.common_ratio(guess, true_values, percent),
            }
            for percent in floats(top, "--top")
        ],
        "bins": size_bins,
    }
    ends = " (95 % interval {:.3f} to {:.3f})".format(*interval) if interval else ""
    overall = f"SRC {rho:.3f}{ends}, Kendall {tau:.3f}, {len(table)} models"
    ways = "; ".join(direction(name, lower, higher) for name in (proxy, truth))
    return analysis(document, "top", "bins", notes=[overall, TOP_COLUMNS, ways, left_out(missing)])


def heatmap(
    file: str,
    *,
    proxies: Names,
    truths: Names,
    subsets: str | None = None,
    best_per: str | None = None,
    where: Sequence[str] | None = None,
    lower: Names = "",
    higher: Names = "",
    svg: str | Path | None = None,
) -> Analysis:
    """Compute the rank correlation (SRC) of several proxies with several ground truths, by subset.

    `best_per` names the column of the model: of its runs, as with several learning rates, only the best by the truth
    counts.
    """
    from plait.analysis.learning_rate import best_runs
    from plait.analysis.rank import spearman

    table, _ = read(file, where, [])
    parts = table.groups(subsets) if subsets else {"all": table}
    cells, rows = [], []
    for part, chosen in parts.items():
        for proxy in names(proxies):
            row: dict[str, object] = {subsets or "subset": part, "proxy": proxy}
            for truth in names(truths):
                pairs, _ = chosen.complete([proxy, truth])
                if best_per:
                    pairs = pairs.rows(best_runs(pairs.column(best_per), goodness(pairs, truth, lower, higher)))
                value = spearman(goodness(pairs, proxy, lower, higher), goodness(pairs, truth, lower, higher))
                cells.append({"subset": part, "proxy": proxy, "truth": truth, "models": len(pairs), "src": value})
                row[truth] = value
            rows.append(row)
    if svg is not None:
        from plait.reporting.studies import src_figure

        write_text(svg, src_figure(cells, subsets or ""))
    ways = "; ".join(direction(name, lower, higher) for name in (*names(proxies), *names(truths)))
    return Analysis({"cells": cells}, {"rows": rows}, (ways,))


def aspect(
    file: str,
    *,
    metrics: Names,
    width: str = "d_model",
    depth: str = "n_layer",
    size: str = "decoder_params",
    tolerance: float = 0.02,
    where: Sequence[str] | None = None,
    svg: str | Path | None = None,
) -> Analysis:
    """Measure how much models of equal size but different shape differ."""
    from plait.analysis.comparisons import aspect_study

    chosen = names(metrics)
    table, missing = read(file, where, [width, depth, size, *chosen])
    columns = {name: table.numbers(name) for name in chosen}
    wide, deep, large = (table.numbers(name) for name in (width, depth, size))
    study = aspect_study(wide, deep, large, columns, tolerance)
    if svg is not None:
        from plait.reporting.studies import aspect_figure

        values = {name: metric.tolist() for name, metric in columns.items()}
        same_size = [group.models.tolist() for group in study.groups]
        write_text(svg, aspect_figure((wide / deep).tolist(), large.tolist(), values, same_size))
    groups = [
        {
            "models": len(group.models),
            "size": group.size[0],
            "aspect_from": group.aspect[0],
            "aspect_to": group.aspect[1],
            **{f"spread_{name}": ratio for name, ratio in group.spread.items()},
        }
        for group in study.groups
    ]
    largest = {name: study.largest(name) for name in chosen}
    spreads = ", ".join(f"{name} {ratio:.3f}×" for name, ratio in largest.items())
    notes = [
        f"largest spread at equal size: {spreads}",
        left_out(study.alone, "without another of the same size"),
        left_out(missing),
    ]
    return analysis({"largest": largest, "alone": study.alone, "groups": groups}, "groups", notes=notes)


def lr(
    file: str,
    *,
    model: str,
    rate: str,
    quality: str,
    proxy: str,
    where: Sequence[str] | None = None,
    lower: Names = "",
    higher: Names = "",
) -> Analysis:
    """Find which learning rate wins, and whether a fixed one changes the ranking. Several runs of a model at one rate
    are seeds: their mean counts, and `clear` says how many wins are more than the noise between them."""
    from plait.analysis.learning_rate import learning_rate_study

    table, missing = read(file, where, [rate, proxy])
    true_quality, guess = (goodness(table, name, lower, higher) for name in (quality, proxy))
    study = learning_rate_study(table.column(model), table.numbers(rate), -true_quality, guess)
    rates = [{name: value for name, value in vars(row).items() if value is not None} for row in study.rates]
    sign = 1 if lower_is_better(quality, lower, higher) else -1
    best = [
        {"model": name, "rate": best_rate, "quality": sign * value}
        for name, best_rate, value in zip(
            study.models, study.best_rate.tolist(), study.best_quality.tolist(), strict=True
        )
    ]
    notes = [
        f"SRC of {proxy} with each model's best: {study.src_best:.3f}, {len(study.models)} models",
        RATE_COLUMNS,
        *([] if study.noise is None else [f"noise between seeds: {study.noise:.3g}; clear: wins beyond it, 95 %"]),
        direction(quality, lower, higher),
        left_out(missing),
    ]
    noise = {} if study.noise is None else {"noise": study.noise}
    return analysis({"src_best": study.src_best, **noise, "rates": rates, "best": best}, "rates", notes=notes)
