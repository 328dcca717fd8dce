"""How well a profile of this machine predicts unseen architectures.

    python benchmarks/predictor.py [--out FILE.json] [--time 180] [--each 30] [--space hybrid ...] [--seed 11]

A profile is made, then random architectures of each space are measured at sequence 192, by default the GPT-2 models of
LiteTransformerSearch, and hybrids. No whole model of the sample is in the profile. All are measured, and then all
again: the ratio of the two times shows how far a measurement repeats itself, which no prediction can beat.

Machines drift, so a reference model is measured at intervals during profiling, and before and after every
architecture. Errors are shown twice: of the times as measured, which is what a user sees, and of the times rescaled to
the speed of the machine during profiling. Memory is measured in a separate process. Run it on an idle machine:
disturbed results are counted.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from plait.device.features import Components
from plait.device.latency import Stopwatch, keep_freed_memory
from plait.device.memory import MemoryMeter
from plait.device.predictor import Prediction, Predictor
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
PASSES = 2
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


def profiled(setting: Setting, spaces: list[str], seconds: float, pace: Pace) -> tuple[Profile, float]:
    """A profile, and the pace while it was made."""
    profile, paces = Profile.here(setting), [pace.now()]

    def on_progress(point: Point, over: float) -> None:
        if len(profile.points) % PACED == 0:
            paces.append(pace.now())

    component_sets = [components for name in spaces for components in Components.of(load_space(name))]
    extend_profile(profile, component_sets, [setting], seconds=seconds, on_progress=on_progress)
    return profile, float(np.median([*paces, pace.now()]))


def measured(
    archs: list[Architecture], setting: Setting, pace: Pace, usual: float, out: Console
) -> list[dict[str, Any]]:
    """A row per architecture, with one measurement of every pass over them."""
    rows: list[dict[str, Any]] = [{"spec": arch.text, "passes": []} for arch in archs]
    with MemoryMeter() as meter:
        before = pace.now()
        for number, at in enumerate(PASSES * list(range(len(archs))), start=1):
            work = Workload(archs[at], setting)
            timing = pace.watch.time(work.run, seconds=0.8, least=6)
            del work
            after = pace.now()
            memory = meter.measure(archs[at], setting).as_dict()
            slower = (before + after) / 2 / usual
            rows[at]["passes"].append({"timing": timing.as_dict(), "memory": memory, "slower": slower})
            before = after
            out.print(f"{number}/{PASSES * len(archs)} {1e3 * timing.seconds:.1f} ms {'noisy' if timing.noisy else ''}")
    return rows


def errors(rows: list[dict[str, Any]], predictor: Predictor) -> dict[str, Any]:
    """Every measurement counts on its own. `corrected`: rescaled to the machine's speed during profiling."""
    predicted = predictor.predict([row["spec"] for row in rows])
    for number, row in enumerate(rows):
        row["predicted"] = {
            name: {end: float(getattr(predicted[name], end)[number]) for end in ("mean", "low", "high")}
            for name in ("latency", "memory")
        }
    passes = [one for row in rows for one in row["passes"]]
    seconds = np.array([[one["timing"]["seconds"] for one in row["passes"]] for row in rows])
    slower = np.array([[one["slower"] for one in row["passes"]] for row in rows])
    peak = np.array([[one["memory"]["peak"] for one in row["passes"]] for row in rows], dtype=np.float64)
    return {
        "architectures": len(rows),
        "noisy": sum(one["timing"]["noisy"] for one in passes),
        "latency": _compared(predicted["latency"], seconds),
        "corrected": _compared(predicted["latency"], seconds / slower),
        "memory": _compared(predicted["memory"], peak),
    }


def _compared(predicted: Prediction, true_NP: NDArray[np.float64]) -> dict[str, Any]:
    """Errors of predictions against P measurements of each model, and how far the measurements differ."""
    off_NP = predicted.mean[:, None] / true_NP - 1
    inside_NP = (predicted.low[:, None] <= true_NP) & (true_NP <= predicted.high[:, None])
    return {
        "median": float(np.median(np.abs(off_NP))),
        "p95": float(np.quantile(np.abs(off_NP), 0.95)),
        "max": float(np.abs(off_NP).max()),
        "bias": float(np.median(off_NP)),
        "in_interval": float(inside_NP.mean()),
        "below_upper_end": float((true_NP <= predicted.high[:, None]).mean()),
        "half_width": float(np.median(predicted.high / predicted.mean - 1)),
        "repeatability": float(np.median(np.ptp(true_NP, axis=1) / true_NP.mean(axis=1))),
        "range": [float(true_NP.min()), float(true_NP.max())],
    }


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--out", type=Path)
    arguments.add_argument("--profile", type=Path, help="keep the profile here")
    arguments.add_argument("--time", type=float, default=180, help="seconds for the profile")
    arguments.add_argument("--each", type=int, default=30, help="architectures of each space")
    arguments.add_argument("--space", action="append", help="repeatable; default: lts-gpt2 and hybrid")
    arguments.add_argument("--seed", type=int, default=UNSEEN, help="of the sample")
    given = arguments.parse_args()
    out, setting, started = Console(), Setting(), time.time()
    spaces = given.space or list(SPACES)
    load = os.getloadavg()[0]
    keep_freed_memory()
    with threads(setting):
        pace = Pace(setting)
        profile, usual = profiled(setting, spaces, given.time, pace)
        if given.profile:
            profile.save(given.profile)
        predictor = Predictor(profile, setting)
        samples = {name: sample(name, given.each, seed=given.seed) for name in spaces}
        known = {point.spec for point in profile.of("model")}
        assert not known & {arch.text for archs in samples.values() for arch in archs}
        everything = [arch for together in zip(*samples.values(), strict=True) for arch in together]
        rows = measured(everything, setting, pace, usual, out)
    found: dict[str, Any] = {"all": errors(rows, predictor)}
    for at, name in enumerate(spaces):
        found[name] = errors(rows[at :: len(spaces)], predictor)
    found["slower_than_while_profiling"] = float(np.median([one["slower"] for row in rows for one in row["passes"]]))
    begin = time.perf_counter()
    predictor.latency([arch.text for arch in everything])
    found["seconds_to_predict_all_texts"] = time.perf_counter() - begin
    columns = ("median", "p95", "max", "bias", "in_interval", "below_upper_end", "half_width", "repeatability")
    made = Table("sample", "quantity", *columns)
    for name in ("all", *spaces):
        for what in ("latency", "corrected", "memory"):
            made.add_row(name, what, *(f"{100 * found[name][what][column]:.1f} %" for column in columns))
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
            "provenance": provenance_of(started, time.time() - started),
        }
        given.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
