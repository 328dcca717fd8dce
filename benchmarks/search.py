"""The speed of a search: a million candidates of LiteTransformerSearch's GPT-2 space, and a search of paper size.

    python benchmarks/search.py [--out FILE.json] [--candidates 1000000] [--space lts-gpt2]
                                [--profile box.json --latency 200ms --memory 300MB]

The million: drawn, checked against every constraint, costed exactly, compared in three objectives (decoder parameters,
FLOPs, key-value cache), reduced to the non-dominated front and written out as specs. The limit is 60 s on two cores;
this uses one. Then LiteTransformerSearch's own 30 × 100 loop, NSGA-II and NSGA-III with as many evaluations, each
with the hypervolume of its front next to that of as many random candidates. Before anything is timed, the exact columns
of a sample must equal `model_cost` of its specs.

With a profile, a million candidates that satisfy limits on latency and memory are also searched for decoder parameters,
latency and memory, which includes drawing and predicting all rejected ones. Before that is timed, predictions of a
sample must equal those for its specs one by one.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from rich.console import Console
from rich.table import Table

from plait import __version__
from plait.algorithms.evolution import LtsSearch, RandomSearch
from plait.algorithms.nsga import Nsga2, Nsga3
from plait.algorithms.objectives import Batch, Predicted, exact
from plait.algorithms.predicted import DevicePredictor
from plait.algorithms.search import Search
from plait.analysis.fronts import hypervolume
from plait.device.predictor import Predictor
from plait.device.profile import Profile
from plait.device.quantities import Setting
from plait.model.cost import model_cost
from plait.space.constraints import Limits
from plait.space.space import Space
from plait.space.table import load_space

OBJECTIVES = ("decoder_params", "flops", "kv_cache")
LIMIT_S = 60.0
SEEDS = 3
PAPER_CPU_S = 4.7 * 3031  # seconds a measured candidate, times the measurements of one search


def check(space: Space, sample: int = 50) -> None:
    genes = space.sample(np.random.default_rng(1), sample)
    columns = space.columns(genes)
    for i, row in enumerate(genes):
        cost = model_cost(space.spec(row), seq=space.seq, memory=space.memory)
        wanted = (cost.decoder_params, cost.flops, 4 * cost.kv_cache)
        if tuple(int(columns[name][i]) for name in OBJECTIVES) != wanted:
            raise SystemExit(f"{space.spec(row)}: the columns disagree with the model's cost; nothing was timed")


def check_predictions(space: Space, device: DevicePredictor, sample: int = 50) -> None:
    genes = space.sample(np.random.default_rng(1), 10 * sample)
    genes = genes[space.valid(genes)][:sample]
    batch = Batch(space, genes, space.columns(genes))
    specs = [space.spec(row) for row in genes]
    for name, one_by_one in (("latency", device.predictor.latency(specs)), ("memory", device.predictor.memory(specs))):
        if not np.allclose(device.predict(name, batch)[0], one_by_one.mean, rtol=1e-9):
            raise SystemExit(f"{name} of many candidates disagrees with that of single specs; nothing was timed")


def predicted(space: Space, path: Path, limits: Limits, candidates: int) -> dict[str, Any]:
    """The million under limits on the device; the regressions' fit is part of the time."""
    profile = Profile.load(path, anywhere=True)
    check_predictions(space, DevicePredictor(Predictor(profile, Setting(seq=space.seq))))
    device = DevicePredictor(Predictor(profile, Setting(seq=space.seq)))
    objectives = [*exact(["decoder_params"]), Predicted("latency", device), Predicted("memory", device)]
    found = timed(RandomSearch(space, objectives, samples=candidates, constraints=limits.constraints()))
    return {**found, "limits": limits.as_dict(), "profile": profile.describe(), "in_time": found["seconds"] < LIMIT_S}


def timed(search: Search) -> dict[str, Any]:
    wall, cpu = time.perf_counter(), time.process_time()
    front = search.run()
    return {
        "method": search.method,
        "evaluated": front.evaluated,
        "proposed": front.proposed,
        "front": len(front),
        "seconds": time.perf_counter() - wall,
        "cpu_seconds": time.process_time() - cpu,
    }


def compared(space: Space) -> list[dict[str, Any]]:
    """Searches of paper size, 2,500 evaluations each, by time and by hypervolume."""
    makers = {
        "random": lambda seed: RandomSearch(space, exact(OBJECTIVES), samples=2500, seed=seed),
        "lts": lambda seed: LtsSearch(space, exact(OBJECTIVES), seed=seed),
        "nsga2": lambda seed: Nsga2(space, exact(OBJECTIVES), population=100, iterations=24, seed=seed),
        "nsga3": lambda seed: Nsga3(space, exact(OBJECTIVES), population=100, iterations=24, seed=seed),
    }
    runs = {name: [make(seed) for seed in range(SEEDS)] for name, make in makers.items()}
    rows = {name: [timed(search) for search in searches] for name, searches in runs.items()}
    everything = np.concatenate([search.archive.costs_NM for searches in runs.values() for search in searches])
    worst = everything.max(axis=0)
    volume = {name: median(hypervolume(s.archive.costs_NM, worst) for s in found) for name, found in runs.items()}
    return [
        {
            **rows[name][0],
            "seconds": median(row["seconds"] for row in rows[name]),
            "cpu_seconds": median(row["cpu_seconds"] for row in rows[name]),
            "volume_over_random": volume[name] / volume["random"],
        }
        for name in runs
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--candidates", type=int, default=1_000_000)
    parser.add_argument("--space", default="lts-gpt2")
    parser.add_argument("--profile", type=Path, help="a file that `plait profile` wrote")
    parser.add_argument("--latency", default="200ms")
    parser.add_argument("--memory", default="300MB")
    given = parser.parse_args()
    space = load_space(given.space)
    check(space)
    large = timed(RandomSearch(space, exact(OBJECTIVES), samples=given.candidates))
    in_time = large["seconds"] * 1e6 / given.candidates < LIMIT_S
    rows = compared(space)
    limited = None
    if given.profile:
        limited = predicted(
            space, given.profile, Limits.read(latency=given.latency, memory=given.memory), given.candidates
        )

    out = Console(highlight=False)
    out.print(
        f"{space.name}: {large['evaluated']:,} candidates, {len(OBJECTIVES)} objectives: {large['seconds']:.1f} s "
        f"({large['cpu_seconds']:.1f} s of CPU), front of {large['front']:,}; "
        f"{'within' if in_time else 'NOT within'} {LIMIT_S:g} s a million"
    )
    if limited:
        out.print(
            f"decoder_params, latency, memory under {given.latency} and {given.memory}: {limited['evaluated']:,} that "
            f"hold the limits of {limited['proposed']:,} drawn: {limited['seconds']:.1f} s "
            f"({limited['cpu_seconds']:.1f} s of CPU), front of {limited['front']:,}; "
            f"{'within' if limited['in_time'] else 'NOT within'} {LIMIT_S:g} s"
        )
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("method", "evaluated", "front", "seconds", "CPU", "volume / random"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for row in rows:
        table.add_row(
            row["method"], f"{row['evaluated']:,}", f"{row['front']:,}", f"{row['seconds']:.2f} s",
            f"{row['cpu_seconds']:.2f} s", f"{row['volume_over_random']:.3f}",
        )  # fmt: skip
    out.print(table)
    out.print(f"measured one by one, a search of this size takes {PAPER_CPU_S:,.0f} s of CPU; none is measured here")
    if given.out:
        document = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "plait": __version__,
            "space": space.name,
            "objectives": list(OBJECTIVES),
            "large": {**large, "in_time": in_time},
            "limited": limited,
            "paper_size": rows,
        }
        given.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
