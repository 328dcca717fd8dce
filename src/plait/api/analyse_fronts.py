"""Fronts, and how good they are: `plait.analyse.front`, `hypervolume`, `dominated`, `front_distance`, `matched_pairs`,
`savings`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from plait.api.analyse_table import (
    Analysis,
    Names,
    analysis,
    cell,
    direction,
    floats,
    goodness,
    label_of,
    left_out,
    lower_is_better,
    read,
)
from plait.core.errors import UserError
from plait.core.files import write_text
from plait.core.registry import names
from plait.core.units import percent

if TYPE_CHECKING:
    from plait.analysis.pareto import Floats
    from plait.analysis.table import Table


def front(
    file: str,
    *,
    minimise: Names = "",
    maximise: Names = "",
    hull: bool = False,
    where: Sequence[str] | None = None,
    label: str | None = None,
) -> Analysis:
    """Find the Pareto front: the rows that no other row dominates."""
    import numpy as np

    from plait.analysis.fronts import lower_hull
    from plait.analysis.pareto import as_costs, pareto_front

    table, columns, points, turned, missing = _objectives(file, where, minimise, maximise)
    if hull:
        if len(columns) != 2:
            raise UserError(f"--hull takes two objectives; there are {len(columns)}: {', '.join(columns)}.")
        places = lower_hull(*as_costs(points, turned).T)
    else:
        places = np.flatnonzero(pareto_front(points, turned))
        places = places[np.argsort(points[places, 0], kind="stable")]
    called = label_of(table, label)
    rows = [{"row": called[place], **_values(columns, points[place])} for place in places.tolist()]
    notes = [f"{len(rows)} of {len(table)} rows", left_out(missing)]
    return analysis({"models": len(table), "front": rows}, "front", notes=notes)


def hypervolume(
    file: str,
    *,
    minimise: Names = "",
    maximise: Names = "",
    reference: str | Sequence[float] | None = None,
    where: Sequence[str] | None = None,
) -> Analysis:
    """Give the volume that a front dominates."""
    from plait.analysis.fronts import hypervolume as volume
    from plait.analysis.pareto import as_costs

    _, columns, points, turned, missing = _objectives(file, where, minimise, maximise)
    if reference:
        corner = floats(reference, "--reference")
    else:
        worst = as_costs(points, turned).max(axis=0).tolist()
        corner = [-value if place in turned else value for place, value in enumerate(worst)]
    dominated_volume = volume(points, corner, turned)
    against = dict(zip(columns, corner, strict=True))
    reference_text = ", ".join(f"{name} {cell(value)}" for name, value in against.items())
    document = {"hypervolume": dominated_volume, "reference": against}
    return analysis(
        document,
        notes=[f"hypervolume {dominated_volume:.6g}, with the reference point {reference_text}", left_out(missing)],
    )


def dominated(
    file: str,
    *,
    minimise: Names = "",
    maximise: Names = "",
    strict: bool = False,
    where: Sequence[str] | None = None,
    label: str | None = None,
) -> Analysis:
    """Find the rows of a claimed front that another row dominates."""
    from plait.analysis.fronts import dominated_models

    table, columns, points, turned, missing = _objectives(file, where, minimise, maximise)
    called = label_of(table, label)
    rows = [
        {"row": called[pair.model], "dominated_by": called[pair.by], **_values(columns, points[pair.model])}
        for pair in dominated_models(points, turned, strict)
    ]
    notes = [f"{len(rows)} of {len(table)} rows are {'strictly ' * strict}dominated", left_out(missing)]
    return analysis({"models": len(table), "dominated": rows}, "dominated", notes=notes)


def front_distance(
    file: str,
    *,
    proxy: str,
    cost: str,
    quality: str,
    whole_front: bool = False,
    where: Sequence[str] | None = None,
    lower: Names = "",
    higher: Names = "",
    label: str | None = None,
) -> Analysis:
    """Compute the distance d_avg between a proxy's front and the true one."""
    from plait.analysis.fronts import proxy_front_distance

    table, missing = read(file, where, [proxy, cost, quality])
    guess, true_quality = (goodness(table, name, lower, higher) for name in (proxy, quality))
    distance = proxy_front_distance(table.numbers(cost), guess, -true_quality, hull=not whole_front)
    called = label_of(table, label)
    points = [
        {
            "row": called[claimed],
            "nearest": called[nearest],
            **{name: table.column(name)[claimed] for name in (cost, quality)},
            f"true_{quality}": table.column(quality)[nearest],
            "gap": float(gap),
        }
        for claimed, nearest, gap in zip(distance.claimed, distance.nearest, distance.gaps, strict=True)
    ]
    notes = [
        f"d_avg {percent(distance.mean, 2)} over the {len(points)} models of the front that {proxy} finds",
        direction(quality, lower, higher),
        left_out(missing),
    ]
    return analysis({"d_avg": distance.mean, "models": len(table), "front": points}, "front", notes=notes)


def matched_pairs(
    file: str,
    *,
    equal: Names,
    far: str,
    tolerance: float = 0.01,
    ratio: float = 1.0,
    difference: float = 0.0,
    limit: int = 10,
    where: Sequence[str] | None = None,
    label: str | None = None,
) -> Analysis:
    """Find matched pairs: rows that agree in some columns and differ most in another."""
    import numpy as np

    from plait.analysis.comparisons import find_matched_pairs

    columns = names(equal)
    if not columns:
        raise UserError("give --equal the columns in which matched pairs agree.")
    table, missing = read(file, where, [*columns, far])
    alike = np.column_stack([table.numbers(name) for name in columns])
    matched = find_matched_pairs(alike, table.numbers(far), tolerance, ratio, difference, limit)
    called = label_of(table, label)
    pairs = [
        {
            "low": called[pair.low],
            "high": called[pair.high],
            f"{far}_low": table.column(far)[pair.low],
            f"{far}_high": table.column(far)[pair.high],
            "ratio": pair.ratio,
            "difference": pair.difference,
        }
        for pair in matched
    ]
    notes = ["" if pairs else "no matched pairs found", left_out(missing)]
    return analysis({"models": len(table), "matched_pairs": pairs}, "matched_pairs", notes=notes)


def savings(
    file: str,
    *,
    baseline: str,
    cost: Names,
    quality: str,
    where: Sequence[str] | None = None,
    baseline_where: Sequence[str] | None = None,
    lower: Names = "",
    higher: Names = "",
    label: str | None = None,
    svg: str | Path | None = None,
) -> Analysis:
    """Compute what a front saves over a baseline at equal quality."""
    from plait.analysis.comparisons import gains_at_equal_cost, savings_at_equal_quality

    columns = names(cost)
    searched, missing = read(file, where, [*columns, quality])
    base, base_missing = read(baseline, baseline_where, [*columns, quality])
    base_quality, searched_quality = (-goodness(table, quality, lower, higher) for table in (base, searched))
    rows: list[dict[str, object]] = []
    for name in columns:
        sides = (base.numbers(name), base_quality, searched.numbers(name), searched_quality)
        saved, gained = savings_at_equal_quality(*sides), gains_at_equal_cost(*sides)
        factors = [comparison.factor for comparison in saved.compared]
        rows.append(
            {
                "cost": name,
                "compared": len(saved.compared),
                "outside": saved.outside,
                "mean_saving": saved.mean,
                "factor_at_best": factors[0] if factors else None,
                "largest_factor": max(factors, default=None),
                f"{quality}_gain": gained.mean_difference,
            }
        )
    if svg is not None:
        from plait.reporting.studies import Models, front_figure

        drawn = [
            Models(
                called,
                [str(text) for text in label_of(table, label)],
                table.numbers(quality).tolist(),
                {name: table.numbers(name).tolist() for name in columns},
            )
            for called, table in (("found", searched), ("baseline", base))
        ]
        way, title = lower_is_better(quality, lower, higher), f"{quality} against {', '.join(columns)}"
        write_text(svg, front_figure(drawn, quality, lower=way, title=title))
    notes = [
        f"factor at best: the baseline's cost over the front's, at the best {quality} that the front reaches",
        f"{quality} gain: at equal cost, on average; {direction(quality, lower, higher)}",
        left_out(missing + base_missing),
    ]
    return analysis({"savings": rows}, "savings", notes=notes)


def _objectives(
    file: str, where: Sequence[str] | None, minimise: Names, maximise: Names
) -> tuple[Table, list[str], Floats, list[int], int]:
    """The table, names and values of the objectives, which are maximised, and how many rows lack a value."""
    import numpy as np

    low, high = names(minimise), names(maximise)
    columns = [*low, *high]
    if not columns:
        raise UserError("name the objectives with --minimise and --maximise, such as --minimise latency_ms,memory_mb.")
    if twice := [name for name in columns if columns.count(name) > 1]:
        raise UserError(f"column '{twice[0]}' is named twice among the objectives.")
    table, missing = read(file, where, columns)
    points = np.column_stack([table.numbers(name) for name in columns])
    return table, columns, points, list(range(len(low), len(columns))), missing


def _values(columns: list[str], point: Floats) -> dict[str, float | int]:
    """A row's values by name, whole numbers as integers."""
    return {name: int(v) if v.is_integer() else v for name, v in zip(columns, point.tolist(), strict=True)}
