"""How well a profile of this machine predicts unseen architectures.

    python benchmarks/predictor.py [--out FILE.json] [--time 180] [--each 30]

A profile is made, then random architectures of two spaces are measured at sequence 192: the GPT-2 models of
LiteTransformerSearch, and hybrids. No whole model of the sample is in the profile. Machines drift, so a reference
model is measured at intervals during profiling, and before and after every architecture, whose time is rescaled to the
speed of the machine during profiling. Memory is measured in a separate process. Run it on an idle machine: disturbed
results are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from plait.device.features import Components
from plait.device.latency import Stopwatch, keep_freed_memory
from plait.device.memory import MemoryMeter
from plait.device.predictor import Predictor
from plait.device.profile import Point, Profile
from plait.device.profiling import extend_profile
from plait.device.quantities import Setting
from plait.device.workload import Workload, threads
from plait.model.architecture import Architecture, architecture
from plait.records import provenance_of
from plait.space.table import load_space

SPACES = ("lts-gpt2", "hybrid")
REFERENCE = "d=384 vocab=50257 tie=true | (attn swiglu[inner=1024])x3"
UNSEEN = 11  # of the sample; that of 2026 was looked at while the predictor was made
PACED = 25  # points of a profile between two looks at the reference
TARGETS = {"median": 0.05, "p95": 0.12, "memory": 0.05}


def sample(name: str, count: int, seed: int) -> list[Architecture]:
    space = load_space(name)
    rng = np.random.default_rng(seed)
    genes = space.sample(rng, 20 * count)
    return [architecture(space.spec(row)) for row in genes[space.valid(genes)][:count]]


class Pace:
    """The reference model's time, now and then: how fast the machine is at the moment."""

    def __init__(self, setting: Setting) -> None:
        self.watch, self.work = Stopwatch(setting), Workload(architecture(REFERENCE), setting)

    def now(self) -> float:
        return self.watch.time(self.work.run, seconds=0.3).seconds


def profiled(setting: Setting, seconds: float, pace: Pace) -> tuple[Profile, float]:
    """A profile, and the pace while it was made."""
    profile, paces = Profile.here(setting), [pace.now()]

    def on_progress(point: Point, over: float) -> None:
        if len(profile.points) % PACED == 0:
            paces.append(pace.now())

    component_sets = [components for name in SPACES for components in Components.of(load_space(name))]
    extend_profile(profile, component_sets, [setting], seconds=seconds, on_progress=on_progress)
    return profile, float(np.median([*paces, pace.now()]))


def measured(
    archs: list[Architecture], setting: Setting, pace: Pace, usual: float, out: Console
) -> list[dict[str, Any]]:
    rows = []
    with MemoryMeter() as meter:
        before = pace.now()
        for number, arch in enumerate(archs, start=1):
            work = Workload(arch, setting)
            timing = pace.watch.time(work.run, seconds=0.8, least=6)
            del work
            after = pace.now()
            at = (before + after) / 2
            found = {"timing": timing.as_dict(), "memory": meter.measure(arch, setting).as_dict()}
            rows.append({"spec": arch.text, "pace": at, "seconds": timing.seconds * usual / at, **found})
            before = after
            out.print(f"{number}/{len(archs)} {1e3 * timing.seconds:.1f} ms {'noisy' if timing.noisy else ''}")
    return rows


def errors(rows: list[dict[str, Any]], predictor: Predictor) -> dict[str, Any]:
    latency = predictor.latency([row["spec"] for row in rows])
    memory = predictor.memory([row["spec"] for row in rows])
    true = np.array([row["seconds"] for row in rows])
    peak = np.array([row["memory"]["peak"] for row in rows])
    off, raw = latency.mean / true - 1, latency.mean / np.array([row["timing"]["seconds"] for row in rows]) - 1
    for row, mean, low, high, held in zip(rows, latency.mean, latency.low, latency.high, memory.mean, strict=True):
        row["predicted"] = {"seconds": mean, "low": low, "high": high, "memory": held}
    return {
        "architectures": len(rows),
        "noisy": sum(row["timing"]["noisy"] for row in rows),
        "latency": {
            "median": float(np.median(np.abs(off))),
            "p95": float(np.quantile(np.abs(off), 0.95)),
            "max": float(np.abs(off).max()),
            "bias": float(np.median(off)),
            "median_without_drift_correction": float(np.median(np.abs(raw))),
            "p95_without_drift_correction": float(np.quantile(np.abs(raw), 0.95)),
            "in_interval": float(np.mean((latency.low <= true) & (true <= latency.high))),
            "range_ms": [float(1e3 * true.min()), float(1e3 * true.max())],
        },
        "memory": {
            "median": float(np.median(np.abs(memory.mean / peak - 1))),
            "max": float(np.abs(memory.mean / peak - 1).max()),
            "range_mb": [float(peak.min() / 1e6), float(peak.max() / 1e6)],
        },
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--profile", type=Path, help="keep the profile here")
    arguments.add_argument("--time", type=float, default=180, help="seconds for the profile")
    arguments.add_argument("--each", type=int, default=30, help="architectures of each space")
    given = arguments.parse_args()
    out, setting, started = Console(), Setting(), time.time()
    load = os.getloadavg()[0]
    keep_freed_memory()
    with threads(setting):
        pace = Pace(setting)
        profile, usual = profiled(setting, given.time, pace)
        if given.profile:
            profile.save(given.profile)
        predictor = Predictor(profile, setting)
        samples = {name: sample(name, given.each, seed=UNSEEN) for name in SPACES}
        known = {point.spec for point in profile.of("model")}
        assert not known & {arch.text for archs in samples.values() for arch in archs}
        everything = [arch for pair in zip(*samples.values(), strict=True) for arch in pair]
        rows = measured(everything, setting, pace, usual, out)
    found: dict[str, Any] = {"all": errors(rows, predictor)}
    for at, name in enumerate(SPACES):
        found[name] = errors(rows[at :: len(SPACES)], predictor)
    found["reference_ms"] = {"profile": 1e3 * usual, "after": 1e3 * float(np.median([row["pace"] for row in rows]))}
    begin = time.perf_counter()
    predictor.latency([arch.text for arch in everything])
    found["seconds_to_predict_60_texts"] = time.perf_counter() - begin
    made = Table("sample", "median", "p95", "bias", "in interval", "memory median", "memory max", "noisy")
    for name in ("all", *SPACES):
        one, memory = found[name]["latency"], found[name]["memory"]
        cells = (one["median"], one["p95"], one["bias"], one["in_interval"], memory["median"], memory["max"])
        made.add_row(name, *(f"{100 * cell:.1f} %" for cell in cells), str(found[name]["noisy"]))
    out.print(made)
    if given.out:
        document = {
            "benchmark": "predictor",
            "setting": setting.as_dict(),
            "targets": TARGETS,
            "load_before": load,
            "profile": profile.describe(),
            "errors": found,
            "rows": rows,
            "about": provenance_of(started, time.time() - started),
        }
        given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
