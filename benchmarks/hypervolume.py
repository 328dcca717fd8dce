"""What a search loses in quality and saves in time by predicting: the same search with predictions and measurements.

    python benchmarks/hypervolume.py [--out FILE.md] [--time 60] [--paper-time 150] [--front 16] [--no-paper]

**Reduced case.** LiteTransformerSearch's GPT-2 space with small sizes, its loop with the same seed twice:

    predicted   latency and memory from a profile made in the run; every model of the front is measured afterwards
    measured    latency and memory of every candidate are measured during the search

Both fronts are then measured once more, alternating, so that neither benefits from the noise of its selection. The
hypervolume (decoder parameters, latency, memory; the reference point is the worst of both fronts) of the predicted
front over that of the measured one must be at least 0.98. Machines drift: a reference model is measured before and
after every candidate, whose time is given at the reference's usual speed.

**Paper size.** `plait profile` and `plait search` of the whole space as published (30 × 100), models of the front
measured: CPU seconds of all processes, start-up included, against 4.7 s for each of 3031 candidates (paper, App. E).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console

from plait import __version__
from plait.algorithms.evolution import LtsSearch
from plait.algorithms.front import Front
from plait.algorithms.objectives import Batch, Predicted, exact
from plait.algorithms.objectives import Predictor as GivesBoth
from plait.algorithms.predicted import DevicePredictor
from plait.analysis.fronts import hypervolume
from plait.device.features import Components
from plait.device.latency import Stopwatch, keep_freed_memory
from plait.device.memory import MemoryMeter
from plait.device.predictor import Predictor
from plait.device.profile import Profile
from plait.device.profiling import extend_profile
from plait.device.quantities import Setting
from plait.device.workload import Workload, threads
from plait.model.architecture import architecture
from plait.papers.spaces import LtsGpt2
from plait.records import provenance_of
from plait.space.space import Space

Floats = NDArray[np.float64]

SMALL = dataclasses.replace(
    LtsGpt2.declaration,
    name="lts-gpt2-small",
    layers="2..5",
    d="128..256 step 64",
    slots=[["attn[heads=2|4|8,pos=none,bias]"], ["mlp[inner=256..1536 step 64,act=gelu-tanh]"]],
    header="vocab=4096 pos=learned max_len=1024 tie=true norm=layer eps=1e-5",
    vary={},
    constraints=["inner >= int(1.7 * d)"],
)
#: 30 candidates to begin with and 24 in each of 6 iterations, in the paper's proportions: 174 in all.
SIZES = {"iterations": 6, "start": 30, "parents": 6, "mutants": 12, "crossovers": 12}
REFERENCE = "d=192 vocab=4096 tie=true | (attn[heads=4] mlp[inner=768])x3"
SETTING = Setting(seq=192)
TARGET = 0.98
PAPER_CPU_S = 4.7 * 3031
LEAST_SAVING = 10


def cpu_seconds() -> float:
    """Of this process and of those it has started and seen end."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


class Bench:
    """Measures candidates at the machine's usual speed. What the reference takes is no part of a search's cost."""

    def __init__(self, out: Console) -> None:
        self.watch = Stopwatch(SETTING)
        self.reference = Workload(architecture(REFERENCE), SETTING)
        self.out, self.reference_cpu = out, 0.0
        self.meter: MemoryMeter | None = None
        self.usual = self.last = float(np.median([self._pace() for _ in range(5)]))
        self.measured = self.noisy = 0

    def both(self, spec: str) -> tuple[float, float]:
        """Seconds and bytes."""
        assert self.meter is not None
        arch, before = architecture(spec), self.last
        timing = self.watch.time(Workload(arch, SETTING).run, seconds=0.15, least=6)
        peak = self.meter.measure(arch, SETTING).peak
        self.last = self._pace()
        self.measured += 1
        self.noisy += timing.noisy
        if self.measured % 20 == 0:
            self.out.print(f"{self.measured} measured, the last in {1e3 * timing.seconds:.1f} ms", style="dim")
        return timing.seconds * self.usual / ((before + self.last) / 2), float(peak)

    @contextmanager
    def costed(self) -> Iterator[Cost]:
        """The CPU seconds of what is done inside, without the reference's; memory is measured inside only."""
        cost, started, reference = Cost(), cpu_seconds(), self.reference_cpu
        wall, measured = time.perf_counter(), self.measured
        with MemoryMeter() as self.meter:
            yield cost
        self.meter = None
        cost.cpu += cpu_seconds() - started - (self.reference_cpu - reference)
        cost.wall += time.perf_counter() - wall
        cost.measured += self.measured - measured

    def _pace(self) -> float:
        started = time.process_time()
        seconds = self.watch.time(self.reference.run, seconds=0.1, least=6).seconds
        self.reference_cpu += time.process_time() - started
        return seconds


@dataclass
class Cost:
    cpu: float = 0.0
    wall: float = 0.0
    measured: int = 0


@dataclass
class Measuring:
    """What a search asks instead of a profile: every candidate is built and run."""

    bench: Bench
    known: dict[str, tuple[float, float]] = field(default_factory=dict)

    def predict(self, quantity: str, batch: Batch) -> tuple[Floats, Floats]:
        specs = [batch.space.spec(row) for row in batch.genes_NG]
        for spec in specs:
            if spec not in self.known:
                self.known[spec] = self.bench.both(spec)
        place = ("latency", "memory").index(quantity)
        return np.array([self.known[spec][place] for spec in specs], dtype=np.float64), np.zeros(len(specs))

    def as_dict(self) -> dict[str, Any]:
        return {"measured": "every candidate"}


def searched(space: Space, gives: GivesBoth, sizes: dict[str, int], seed: int) -> Front:
    objectives = [*exact(["decoder_params"]), Predicted("latency", gives), Predicted("memory", gives)]
    return LtsSearch(space, objectives, seed=seed, **sizes).run()


def volume_ratio(predicted: Floats, measured: Floats) -> float:
    """Rows are −parameters, seconds, bytes."""
    worst = np.concatenate([predicted, measured]).max(axis=0)
    return hypervolume(predicted, worst) / hypervolume(measured, worst)


def values(front: Front, found: dict[str, tuple[float, float]]) -> Floats:
    return np.array([[-float(row["decoder_params"]), *found[row["spec"]]] for row in front.rows])


def reduced(seconds: float, sizes: dict[str, int], seed: int, out: Console) -> dict[str, Any]:
    keep_freed_memory()
    with threads(SETTING):
        bench, space = Bench(out), Space(SMALL)
        out.print("predicted: a profile, the search, its front measured")
        with bench.costed() as cheap:
            profile = Profile.here(SETTING)
            extend_profile(profile, Components.of(space), [SETTING], seconds=seconds)
            one = searched(space, DevicePredictor(Predictor(profile, SETTING)), sizes, seed)
            first = {row["spec"]: bench.both(row["spec"]) for row in one.rows}
        out.print("measured: the same search, every candidate measured")
        with bench.costed() as dear:
            measuring = Measuring(bench)
            other = searched(space, measuring, sizes, seed)
        out.print("both fronts once more, taking turns")
        with bench.costed():
            again = {spec: bench.both(spec) for spec in in_turn(one, other)}
        noisy = bench.noisy / bench.measured
    predicted = {row["spec"]: row["latency"] for row in one.rows}
    errors = [abs(predicted[spec] / seconds - 1) for spec, (seconds, _) in first.items()]
    return {
        "candidates": one.evaluated,
        "fronts": (len(one), len(other)),
        "common": len({row["spec"] for row in one.rows} & {row["spec"] for row in other.rows}),
        "ratio": volume_ratio(values(one, again), values(other, again)),
        "ratio_as_found": volume_ratio(values(one, first), values(other, measuring.known)),
        "latency_error": float(np.median(errors)),
        "profile_seconds": profile.seconds,
        "predicted": cheap,
        "measured": dear,
        "noisy": noisy,
    }


def in_turn(one: Front, other: Front) -> list[str]:
    """The specs of both, now of the one and now of the other, each once."""
    pairs: list[str] = []
    for at in range(max(len(one), len(other))):
        pairs += [front.rows[at]["spec"] for front in (one, other) if at < len(front)]
    return list(dict.fromkeys(pairs))


def paper_size(seconds: float, front: int, out: Console) -> dict[str, Any]:
    """The commands themselves, in an empty folder."""
    out.print("paper size: profile, 30 × 100, front")
    before, wall = cpu_seconds(), time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        _plait(folder, "profile", "-o", "box.json", "--time", f"{seconds:g}s", "--space", "lts-gpt2", "--json")
        profiled = cpu_seconds() - before
        found = json.loads(
            _plait(folder, "search", "--space", "lts-gpt2", "--profile", "box.json", "--front", str(front), "--json")
        )
    return {
        "cpu": cpu_seconds() - before,
        "profile_cpu": profiled,
        "wall": time.perf_counter() - wall,
        "evaluated": found["evaluated"],
        "on_front": found["on_front"],
        "measured": found["measured"],
        "search_seconds": found["cost"]["search_seconds"],
    }


def _plait(folder: str, *arguments: str) -> str:
    program = [sys.executable, "-c", "from plait.cli.main import main; main()", *arguments]
    return subprocess.run(program, cwd=folder, check=True, text=True, stdout=subprocess.PIPE).stdout


def report(case: dict[str, Any], paper: dict[str, Any] | None, seed: int, load: float) -> str:
    machine, (one, other) = provenance_of(time.time(), 0.0), case["fronts"]
    cheap, dear = case["predicted"], case["measured"]
    lines = [
        f"# A search predicted, and the same search measured, {time.strftime('%Y-%m-%d')}",
        "",
        f"torch {torch.__version__}, numpy {np.__version__}, Python {platform.python_version()}, plait {__version__}; "
        f"one thread of {machine['cpu']} ({machine['cores']} cores, load {load:.1f} before). "
        "`python benchmarks/hypervolume.py`.",
        "",
        f"## Reduced case: {SMALL.name}, {case['candidates']} candidates, seed {seed}",
        "",
        "| search | front | models measured | CPU seconds | wall seconds |",
        "|---|---|---|---|---|",
        f"| predicted, its front measured | {one} | {cheap.measured} | {cheap.cpu:.0f} | {cheap.wall:.0f} |",
        f"| every candidate measured | {other} | {dear.measured} | {dear.cpu:.0f} | {dear.wall:.0f} |",
        "",
        f"Hypervolume of the predicted front over that of the measured one: **{case['ratio']:.4f}** (at least "
        f"{TARGET} wanted), both fronts measured once more in turn; {case['ratio_as_found']:.4f} by what each search "
        f"saw itself. {case['common']} models are on both. Median error of the predicted latencies: "
        f"{100 * case['latency_error']:.1f} %. {100 * case['noisy']:.0f} % of the measurements were noisy. The profile "
        f"takes {case['profile_seconds']:.0f} s of the first row, whatever the search's size.",
        "",
    ]
    if paper is not None:
        lines += [
            "## Paper size: lts-gpt2, 30 × 100",
            "",
            f"`plait profile` and `plait search`, {paper['evaluated']:,} candidates, {paper['measured']} of "
            f"{paper['on_front']} models of the front measured: **{paper['cpu']:.0f} s** of CPU, all processes "
            f"({paper['profile_cpu']:.0f} s for the profile; {paper['wall']:.0f} s by the wall), the search alone "
            f"{paper['search_seconds']:.1f} s. 4.7 s × 3031 are {PAPER_CPU_S:,.0f} s: "
            f"**{PAPER_CPU_S / paper['cpu']:.0f} times** as much (at least {LEAST_SAVING} wanted).",
            "",
        ]
    return "\n".join(lines)


def main(given: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the report to this Markdown file")
    parser.add_argument("--time", type=float, default=60, help="seconds for the reduced case's profile")
    parser.add_argument("--iterations", type=int, default=SIZES["iterations"], help="of the reduced search")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--paper-time", type=float, default=150, help="seconds for the profile of the paper-size search"
    )
    parser.add_argument("--front", type=int, default=16, help="models that the paper-size search measures")
    parser.add_argument("--no-paper", action="store_true", help="the reduced case alone")
    asked = parser.parse_args(given)
    out, load = Console(stderr=True), os.getloadavg()[0]
    case = reduced(asked.time, {**SIZES, "iterations": asked.iterations}, asked.seed, out)
    paper = None if asked.no_paper else paper_size(asked.paper_time, asked.front, out)
    text = report(case, paper, asked.seed, load)
    print(text)
    if asked.out:
        asked.out.write_text(text, encoding="utf-8")
    if case["ratio"] < TARGET or (paper is not None and LEAST_SAVING * paper["cpu"] > PAPER_CPU_S):
        raise SystemExit("below what is wanted")


if __name__ == "__main__":
    main()
