"""What a measured latency says about the next measurement, and what "within a limit" says about a model.

    python benchmarks/device_intervals.py [--repetitions 200] [--out FILE.md]

Both run the code of `plait measure` and `plait search` on simulated machines whose truth is known:

- `Stopwatch` on a clock that passes only while something runs, for machines that are calm, interrupted by other work,
  or whose speed changes slowly, which neither clock shows. How often does its 95 % interval hold the latency that the
  machine has on average, and how far do two measurements differ?
- `validate` on fronts of candidates whose predictions and measurements are wrong by known amounts. How often is a model
  that is reported as within its limit above it, and by how much?
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch

import plait.device.latency as latency
from plait.algorithms.front import Front
from plait.device.latency import KERNEL_RUNS, Stopwatch, Timing
from plait.device.quantities import Setting
from plait.records import Record
from plait.searching.validation import validate
from plait.space.constraints import Limits

KERNEL, JITTER = 3e-4, 0.01  # seconds of the calibration kernel; spread of single repeats
LIMIT = 0.040
CANDIDATES, SHOWN = 2500, 16


@dataclass
class Machine:
    """`spread`: of its speed, which changes within about `seconds`; `busy`: the share of interrupted repeats."""

    rng: np.random.Generator
    spread: float = 0.0
    seconds: float = 10.0
    busy: float = 0.0

    def __post_init__(self) -> None:
        self.now, self.slower = 0.0, self.spread * self.rng.normal()

    def run(self, usual: float) -> tuple[float, float]:
        """Wall time and CPU time of something that usually takes so many seconds."""
        own = usual * float(np.exp(JITTER * self.rng.normal() + self.slower))
        wall = own * (1 + self.rng.exponential(0.5) * (self.rng.random() < self.busy))
        kept = np.exp(-wall / self.seconds)
        self.slower = float(kept * self.slower + np.sqrt(1 - kept**2) * self.spread * self.rng.normal())
        self.now += wall
        return wall, own


class Simulated(Stopwatch):
    def __init__(self, machine: Machine, usual: float) -> None:
        self.machine, self.usual = machine, usual
        super().__init__(Setting())
        self._has_own_clock = True

    def _once(self, call: object, before: object) -> tuple[float, float]:
        return self.machine.run(self.usual)

    def kernel_seconds(self) -> float:
        took = min(self.machine.run(KERNEL)[0] for _ in range(KERNEL_RUNS))
        self._best = min(self._best, took)
        return took


def measured(machine: Machine, usual: float) -> Timing:
    latency.time = SimpleNamespace(perf_counter=lambda: machine.now)  # type: ignore[attr-defined]
    return Simulated(machine, usual).time(lambda: None, seconds=1.0)


MACHINES: dict[str, Callable[[np.random.Generator], Machine]] = {
    "calm": lambda rng: Machine(rng),
    "half of the repeats interrupted": lambda rng: Machine(rng, busy=0.5),
    "speed varies by 2 % within seconds": lambda rng: Machine(rng, 0.02, 1.0),
    "speed varies by 2 % within minutes": lambda rng: Machine(rng, 0.02, 100.0),
    "speed varies by 4 % within minutes, half interrupted": lambda rng: Machine(rng, 0.04, 100.0, 0.5),
}


def stopwatch_rows(repetitions: int) -> list[list[str]]:
    rows = []
    for name, machine_of in MACHINES.items():
        for usual in (0.005, 0.05, 0.3):
            rng = np.random.default_rng(0)
            times = [[measured(machine_of(rng), usual) for _ in range(2)] for _ in range(repetitions)]
            each = [timing for pair in times for timing in pair]
            held = np.mean([timing.low <= usual <= timing.high for timing in each])
            reach = np.median([(timing.high - timing.low) / 2 / timing.seconds for timing in each])
            apart = np.quantile([abs(np.log(one.seconds / other.seconds)) for one, other in times], 0.95)
            percents = (f"{100 * share:.{digits}f} %" for share, digits in ((held, 0), (reach, 1), (apart, 1)))
            rows.append([name, f"{1e3 * usual:.0f} ms", *percents])
    return rows


def world(rng: np.random.Generator, repeats: float, low: float, noisy: float) -> tuple[Front, np.ndarray, Callable]:
    """The front of a search whose predictions are wrong by 4 %, and too low by `low`, with intervals of ± 8 %;
    `repeats` is the spread of measurements of one model, `noisy` the share of them that are flagged."""
    true = rng.uniform(5, 60, CANDIDATES)
    mean = true * np.exp(0.04 * rng.normal(size=CANDIDATES) - low)
    size = true**0.9 * np.exp(0.1 * rng.normal(size=CANDIDATES))
    allowed = [at for at in np.argsort(mean) if 1.08 * mean[at] <= 1e3 * LIMIT]
    best = np.maximum.accumulate(size[allowed])
    kept = [at for at, largest in zip(allowed, best, strict=True) if size[at] == largest][::-1]
    rows = [
        {"spec": str(at), "decoder_params": int(1e6 * size[at]), "state": 8, "latency": 1e-3 * mean[at]}
        | {"latency_high": 1.08e-3 * mean[at], "memory": 1e6, "memory_high": 1e6}
        for at in kept
    ]
    objectives = [{"objective": "decoder_params", "maximise": True}, {"objective": "latency", "maximise": False}]

    def measure(spec: str, again: bool) -> Record:
        seconds = 1e-3 * true[int(spec)] * float(np.exp(repeats * rng.normal()))
        timing = {"seconds": seconds, "low": seconds, "high": seconds, "noisy": bool(rng.random() < noisy)}
        return Record.of(
            "measure", {"protocol": 1, "spec": spec}, {"latency": timing, "memory": {"peak": 1}}, {"seconds": 1.0}
        )

    return Front("simulated", "lts", objectives, rows, CANDIDATES, CANDIDATES, {}), 1e-3 * true, measure


def limit_rows(repetitions: int) -> list[list[str]]:
    rows = []
    for low, noisy in ((0.0, 0.0), (0.07, 0.5), (0.14, 0.5)):
        for repeats in (0.01, 0.03, 0.05):
            rng, predicted, within, largest, roomy = np.random.default_rng(0), [], [], [], []
            for _ in range(repetitions):
                front, true, measure = world(rng, repeats, low, noisy)
                predicted += [true[int(row["spec"])] / LIMIT - 1 for row in front.rows]
                good = [row for row in validate(front, Limits(latency=LIMIT), SHOWN, measure).rows if row["within"]]
                within += [true[int(row["spec"])] / LIMIT - 1 for row in good]
                largest += [true[int(max(good, key=_size)["spec"])] / LIMIT - 1] if good else []
                roomy += [true[int(row["spec"])] / LIMIT - 1 for row in good if not row["close"]]
            above = [f"{100 * np.mean(np.array(over) > 0):.1f} %" for over in (predicted, within, roomy, largest)]
            worst = f"{100 * max(0.0, *within):.0f} %"
            rows.append([f"{100 * low:.0f} %", f"{100 * repeats:.0f} %", *above, worst])
    return rows


def _size(row: dict[str, int]) -> int:
    return row["decoder_params"]


def table(columns: list[str], rows: list[list[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--out", type=Path, help="a page with both tables")
    given = parser.parse_args()
    torch.set_num_threads(1)
    columns = ["machine", "latency", "interval holds it", "half-width", "two measurements differ by up to (95 %)"]
    said = table(columns, stopwatch_rows(given.repetitions))
    columns = ["predictions too low by", "measurements repeat to", "above, of the predicted front", "of those within",
               "of those within, not close", "of the largest within", "by at most"]  # fmt: skip
    page = f"{said}\n\n{table(columns, limit_rows(given.repetitions))}\n"
    print(page)
    if given.out:
        given.out.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
