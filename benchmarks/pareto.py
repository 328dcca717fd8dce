"""The speed of finding fronts: a million points with three objectives, against a plain loop in the same run.

    python benchmarks/pareto.py [--out FILE.json] [--points 1000000] [--sample 5000]

Clouds: uniform (a small front); like the objectives of LiteTransformerSearch (Javaheripi et al. 2022,
arXiv:2203.02094), where more parameters cost latency and memory, with noise (a large one); a plane, on which no point
dominates another. The plain loop compares every point with the front so far, O(n · front), vectorised per point in
NumPy; if the front is large it uses a sample, and the ratio is of both times for the same points. Before anything is
timed, both must agree on the sample. Hypervolume and ranks are timed separately. Times are CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from rich.console import Console
from rich.table import Table

from plait import __version__
from plait.analysis.fronts import hypervolume
from plait.analysis.pareto import front_ranks, pareto_front

TARGET_S = 5.0
REPEATS = 3
LARGE = 1000  # a front for which the plain loop would take hours
POPULATION = 5000  # for ranks, as in a large NSGA-II


def uniform(count: int, stream: np.random.Generator) -> np.ndarray:
    return stream.random((count, 3))


def lts_like(count: int, stream: np.random.Generator) -> np.ndarray:
    params = np.exp(stream.uniform(np.log(4e6), np.log(1e8), count))
    latency, memory = (params**0.8 * stream.lognormal(0, 0.3, count) for _ in range(2))
    return np.column_stack([-params, latency, memory])


def plane(count: int, stream: np.random.Generator) -> np.ndarray:
    points = stream.random((count, 3))
    return points / points.sum(axis=1, keepdims=True)


CLOUDS: dict[str, Callable[[int, np.random.Generator], np.ndarray]] = {
    "uniform": uniform,
    "LTS-like": lts_like,
    "plane": plane,
}


def plain_loop(points: np.ndarray) -> np.ndarray:
    """Every point against the front so far."""
    front = np.empty((0, points.shape[1]))
    places = np.empty(0, dtype=np.int64)
    for place, point in enumerate(points):
        if ((front <= point).all(axis=1) & (front < point).any(axis=1)).any():
            continue
        kept = ~((point <= front).all(axis=1) & (point < front).any(axis=1))
        front, places = np.vstack([front[kept], point]), np.append(places[kept], place)
    return np.sort(places)


def measured(name: str, count: int, sample: int) -> dict[str, Any]:
    points = CLOUDS[name](count, np.random.default_rng(0))
    if not np.array_equal(np.flatnonzero(pareto_front(points[:sample])), plain_loop(points[:sample])):
        raise SystemExit(f"{name}: the two ways disagree; nothing was timed")
    front, corner = points[pareto_front(points)], points.max(axis=0)
    some = points if len(front) < LARGE else points[:sample]
    seconds = median(timed(lambda: pareto_front(points)) for _ in range(REPEATS))
    on_sample = median(timed(lambda: pareto_front(some)) for _ in range(REPEATS))
    loop = timed(lambda: plain_loop(some))
    volume = timed(lambda: hypervolume(front[:POPULATION], corner))
    return {
        "cloud": name,
        "points": count,
        "front": len(front),
        "seconds": seconds,
        "loop_points": len(some),
        "loop_seconds": loop,
        "ratio": loop / on_sample,
        "ranks_seconds": timed(lambda: front_ranks(points[:POPULATION])),
        "hypervolume_points": min(len(front), POPULATION),
        "hypervolume_seconds": volume,
        "in_time": seconds * 1_000_000 / count < TARGET_S,
    }


def timed(work: Callable[[], object]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--sample", type=int, default=5000, help="points for the plain loop where fronts are large")
    given = parser.parse_args()
    rows = [measured(name, given.points, min(given.sample, given.points)) for name in CLOUDS]

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("cloud", "points", "front", "time", "plain loop", "ratio", "ranks", "hypervolume", "in time"):
        table.add_column(column, justify="left" if column == "cloud" else "right")
    for row in rows:
        table.add_row(
            row["cloud"], f"{row['points']:,}", f"{row['front']:,}", f"{row['seconds']:.2f} s",
            f"{row['loop_seconds']:.1f} s for {row['loop_points']:,}", f"{row['ratio']:,.0f}×",
            f"{1000 * row['ranks_seconds']:.0f} ms",
            f"{1000 * row['hypervolume_seconds']:.1f} ms for {row['hypervolume_points']:,}",
            "yes" if row["in_time"] else "no",
        )  # fmt: skip
    out = Console(highlight=False, width=140)
    out.print(table)
    out.print(f"in time: a million points in less than {TARGET_S:g} s; ranks of {POPULATION:,} points")
    if given.out:
        document = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "plait": __version__,
            "fronts": rows,
        }
        given.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
