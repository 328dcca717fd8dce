"""What is run: cells in the order in which they tell most.

With a budget the number of steps is fixed by the protocol and the number of seeds by the budget: as many rows (one
task and seed, every architecture) as the measured speed lets finish in time, seed by seed, within a seed the most
telling task first. If not even one seed of each task fits, every training is shortened alike. The plan is a record of
its own, so that a probe that is interrupted and run again, perhaps on a busier machine, does the very same work.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from plait.probe.candidates import Candidate
from plait.probe.cell import Cell
from plait.probe.protocol import VERSION, Protocol
from plait.records import Record, Store, about, record_key

KIND = "probe-plan"
MOST_SEEDS = 20
FINISH_SECONDS = 2.0  # kept for the last evaluation, the table and the verdict
SAFETY = 1.03  # measured speeds are a little better than those of a long run
SHORTEST = 0.1  # of a training's steps


@dataclass(frozen=True)
class Work:
    """Cells to run, and what they are expected to take on this machine."""

    candidates: tuple[Candidate, ...]
    protocol: Protocol
    cells: tuple[Cell, ...]
    expected_seconds: float | None = None

    @property
    def runs(self) -> int:
        return sum(len(cell.training.grid) for cell in self.cells)

    @property
    def steps(self) -> int:
        return sum(len(cell.training.grid) * cell.training.steps for cell in self.cells)


def row(candidates: Sequence[Candidate], protocol: Protocol, setting: int, seed: int, device: str) -> list[Cell]:
    return [Cell.of(one, protocol.settings[setting], seed, device) for one in candidates]


def seeds_of_all(candidates: Sequence[Candidate], protocol: Protocol, seeds: int, device: str) -> Work:
    """Every setting with so many seeds, however long it takes."""
    cells = [
        cell
        for seed in range(seeds)
        for setting in range(len(protocol.settings))
        for cell in row(candidates, protocol, setting, seed, device)
    ]
    return Work(tuple(candidates), protocol, tuple(cells))


def plan_config(
    candidates: Sequence[Candidate], protocol: Protocol, budget: float, workers: int, seeds: int | None, device: str
) -> dict[str, Any]:
    """What decides a plan, but for the machine's speed."""
    return {
        "protocol": VERSION,
        "name": protocol.name,
        "specs": [one.arch.text for one in candidates],
        "mixers": [one.source for one in candidates],
        "settings": [{**s.task.as_dict(), "training": s.training.as_dict()} for s in protocol.settings],
        "budget_seconds": budget,
        "workers": workers,
        "seeds": seeds,
        "device": device,
    }


def stored(store: Store, config: dict[str, Any], candidates: Sequence[Candidate], protocol: Protocol) -> Work | None:
    """The work planned before under the same config."""
    found = store.get(record_key(KIND, config))
    if found is None:
        return None
    rows = [(setting, seed) for setting, seed in found.result["rows"]]
    return _work(candidates, protocol, rows, found.result["scale"], config["device"], found.result["expected_seconds"])


def fitting(
    store: Store,
    config: dict[str, Any],
    candidates: Sequence[Candidate],
    protocol: Protocol,
    seconds: Mapping[str, float],
    left: float,
) -> Work:
    """As many rows as fit into `left` seconds, stored as the plan for this config.

    seconds   of each cell of the first seed, measured with all workers busy
    """
    started, device, workers = time.time(), config["device"], config["workers"]
    first = [row(candidates, protocol, setting, 0, device) for setting in range(len(protocol.settings))]
    costs = [[SAFETY * seconds[cell.key] for cell in cells] for cells in first]
    room = left - FINISH_SECONDS
    whole = makespan([cost for costs_of_row in costs for cost in costs_of_row], workers)
    scale = max(SHORTEST, min(1.0, room / whole))
    rows = [(setting, 0) for setting in range(len(costs))]
    chosen = [cost * scale for costs_of_row in costs for cost in costs_of_row]
    for seed in range(1, config["seeds"] or MOST_SEEDS):
        for setting, more in enumerate(costs):
            # A row that does not fit is left out; a shorter one after it may still.
            if scale == 1.0 and makespan([*chosen, *more], workers) <= room:
                chosen += more
                rows.append((setting, seed))
    expected = makespan(chosen, workers)
    result = {"rows": [list(pair) for pair in rows], "scale": scale, "expected_seconds": expected}
    store.put(Record.of(KIND, config, result, about(started, time.time() - started)))
    # Two probes may have planned at once; the first plan counts for both.
    return stored(store, config, candidates, protocol) or _work(candidates, protocol, rows, scale, device, expected)


def _work(
    candidates: Sequence[Candidate],
    protocol: Protocol,
    rows: Sequence[tuple[int, int]],
    scale: float,
    device: str,
    expected: float,
) -> Work:
    settings = tuple(
        replace(s, training=replace(s.training, steps=max(1, round(s.training.steps * scale))))
        for s in protocol.settings
    )
    protocol = replace(protocol, settings=settings)
    cells = [cell for setting, seed in rows for cell in row(candidates, protocol, setting, seed, device)]
    return Work(tuple(candidates), protocol, tuple(cells), expected)


def makespan(costs: Sequence[float], workers: int) -> float:
    """When the last worker is done if each takes the next item as soon as it is free."""
    free = [0.0] * workers
    for cost in costs:
        heapq.heappush(free, heapq.heappop(free) + cost)
    return max(free)
