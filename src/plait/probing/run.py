"""From a plan to a comparison, through the store: what is recorded is not computed again, what is not is trained by a
crew of workers, and whatever interrupts them loses at most a few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.probing import plan
from plait.probing.candidates import Candidate
from plait.probing.plan import Work
from plait.probing.protocol import Protocol
from plait.probing.replan import Correction, Course
from plait.probing.speed import Speed, to_time
from plait.probing.trial import Cell
from plait.probing.verdict import Comparison, Score
from plait.probing.worker import Event, Setup
from plait.probing.worker_pool import Crew, More
from plait.records import Record, Store
from plait.records.database import file_of, resolve


@dataclass
class Progress:
    """How far a probe is; `watch` is called whenever it has changed."""

    work: Work | None = None
    phase: str = "starting"
    started: float = field(default_factory=time.perf_counter)
    done: dict[str, float] = field(default_factory=dict)  # key → test accuracy
    running: dict[str, dict[str, Any]] = field(default_factory=dict)  # key → the fleet's own progress
    found_before: int = 0  # of those done

    def share(self, cells: Iterable[Cell]) -> float:
        """Of these cells' steps, how many are behind us."""
        total = behind = 0.0
        for cell in cells:
            total += cell.training.steps
            now = self.running.get(cell.key, {}).get("step", 0)
            behind += cell.training.steps if cell.key in self.done else now
        return behind / total if total else 1.0


Watch = Callable[[Progress], None]


@dataclass(frozen=True)
class Outcome:
    work: Work
    records: dict[str, Record]  # by key
    seconds: float  # of this call
    fresh: int  # cells trained by this call
    corrections: tuple[Correction, ...] = ()  # of the plan, on the way


@dataclass(frozen=True)
class Machine:
    """Where it runs. A GPU is fed by two processes at most: while one compiles its step, the other trains."""

    device: str
    workers: int
    checkpoint_seconds: float = 10.0

    @property
    def hands(self) -> int:
        return self.workers if self.device == "cpu" else min(self.workers, 2)


def refuse_leaks(candidates: Sequence[Candidate]) -> None:
    """A mixer that sees the future would look brilliant on every task: it is refused before anything is trained."""
    from plait.model.contract import causality, run_clauses

    for one in candidates:
        for options in dict.fromkeys(o for o in one.arch.layers if o.kind == "sequence"):
            for found in run_clauses(options, d=one.arch.header.d, checks={"causality": causality}):
                if found.status == "fail":
                    raise UserError(
                        f"{options.name} leaks the future ({found.detail}): its scores would mean nothing. "
                        "See `plait check`, clause causality."
                    )


def run_all(work: Work, store: Store, machine: Machine, watch: Watch) -> Outcome:
    """Every cell of the work, however long it takes."""
    progress = Progress(work, "training")
    _note_recorded(progress, work.cells, store)
    if any(cell.key not in progress.done for cell in work.cells):
        with _crew(work.candidates, store, machine) as crew:
            _train(crew, work.cells, progress, store, watch)
    return _outcome(work, store, progress)


def run_budget(
    candidates: Sequence[Candidate],
    protocol: Protocol,
    budget: float,
    store: Store,
    machine: Machine,
    watch: Watch,
    *,
    seeds: int | None = None,
    started: float | None = None,
    overrun: bool = True,
) -> Outcome:
    """As much as `budget` seconds hold, counted from `started` (as `time.perf_counter()` counts).

    Where they hold not even the shortest trainings, those are run; unless they may not `overrun`: then a `UserError`.
    """
    began = time.perf_counter() if started is None else started
    config = plan.plan_config(candidates, protocol, budget, machine.hands, seeds, machine.device)
    progress = Progress(started=began)
    made = plan.stored(store, config, candidates, protocol)
    if made is not None:
        course = Course(made, store)
        keys = {cell.key for cell in course.begun}
        if course.all_begun and store.has(keys) == keys:
            _note_recorded(progress, course.begun, store)
            return _outcome(course.plan.work, store, progress, course.corrections)
    with _crew(candidates, store, machine) as crew:
        if made is None:
            speed = _measured(crew, to_time(candidates, protocol, machine.device), progress, watch)
            left = budget - (time.perf_counter() - began)
            made = plan.fitting(store, config, candidates, protocol, speed, left, overrun=overrun)
        course = Course(made, store)
        _follow(course, crew, progress, store, watch)
    return _outcome(course.plan.work, store, progress, course.corrections)


def expected(
    candidates: Sequence[Candidate], protocol: Protocol, store: Store, machine: Machine, watch: Watch, seeds: int = 1
) -> dict[str, float]:
    """Core-seconds that each architecture would take under a protocol, at most."""
    with _crew(candidates, store, machine) as crew:
        speed = _measured(crew, to_time(candidates, protocol, machine.device), Progress(), watch)
    work = plan.with_seeds(candidates, protocol, [seeds] * len(protocol.settings), machine.device)
    return {one.name: sum(speed.cell(cell) for cell in work.cells if cell.candidate == one.name) for one in candidates}


def compare(outcome: Outcome) -> Comparison:
    """The table's numbers, from the records alone."""
    scores = [
        Score(
            cell.candidate, cell.task.name, cell.task.key(), one["seed"], one["accuracy"], one["loss"],
            cell.training.evaluation,
        )
        for cell in outcome.work.cells
        for one in outcome.records[cell.key].result["seeds"]
    ]  # fmt: skip
    names = [one.name for one in outcome.work.candidates]
    return Comparison(names, outcome.work.protocol.task_names, scores)


def _crew(candidates: Sequence[Candidate], store: Store, machine: Machine) -> Crew:
    mixers = {source.hash: source for one in candidates for source in one.arch.mixer_sources.values()}
    path = file_of(resolve(store.url))
    folder = path.parent if path is not None else Path("runs")
    return Crew(
        Setup(store.url, str(folder.resolve() / "checkpoints"), tuple(mixers.values()), machine.checkpoint_seconds),
        machine.hands,
    )


def _measured(crew: Crew, cells: Sequence[Cell], progress: Progress, watch: Watch) -> Speed:
    """How fast these cells are here."""
    timed: set[str] = set()

    def listen(event: Event) -> None:
        timed.add(event.key)
        progress.phase = f"measuring speed, {len(timed)} of {len(cells)}"
        watch(progress)

    progress.phase = "measuring speed"
    watch(progress)
    return Speed.measured(cells, crew.time(cells, listen))


def _follow(course: Course, crew: Crew, progress: Progress, store: Store, watch: Watch) -> None:
    """Train task after task; the next is decided when a worker finds nothing to start."""

    def begun(cells: Sequence[Cell]) -> Sequence[Cell]:
        progress.work, progress.phase = course.plan.work, "training"
        _note_recorded(progress, cells, store)
        return cells

    _train(crew, begun(course.begun), progress, store, watch, lambda: begun(course.begin_next(progress.running)))


def _train(
    crew: Crew, cells: Sequence[Cell], progress: Progress, store: Store, watch: Watch, more: More = lambda: ()
) -> None:
    watch(progress)

    def listen(event: Event) -> None:
        if event.kind == "progress":
            progress.running[event.key] = event.detail
        elif event.kind == "done" and event.key not in progress.done:
            progress.running.pop(event.key, None)
            found = store.get(event.key)
            progress.done[event.key] = found.result["accuracy"] if found else 0.0
        watch(progress)

    crew.run([cell for cell in cells if cell.key not in progress.done], listen, more)


def _note_recorded(progress: Progress, cells: Sequence[Cell], store: Store) -> None:
    for key in store.has({cell.key for cell in cells}):
        found = store.get(key)
        if found is not None:
            progress.done[key] = found.result["accuracy"]
            progress.found_before += 1


def _outcome(work: Work, store: Store, progress: Progress, corrections: Sequence[Correction] = ()) -> Outcome:
    records = {}
    for key in {cell.key for cell in work.cells}:
        found = store.get(key)
        if found is None:
            raise UserError(f"the record {key} has disappeared from {store.name} while the probe ran; run again.")
        records[key] = found
    fresh = len(records) - progress.found_before
    return Outcome(work, records, time.perf_counter() - progress.started, fresh, tuple(corrections))
