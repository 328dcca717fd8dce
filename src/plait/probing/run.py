"""Run a plan: trials in the store are not trained again; the others are trained by a pool of workers. An interruption
loses at most the seconds since the last checkpoint."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from plait.core.errors import UserError
from plait.probing import plan
from plait.probing.plan import Replan, Scheduler, Work
from plait.probing.protocol import Candidate, Protocol
from plait.probing.trial import FleetProgress, Speed, Trial, all_tokens, to_time, tokens
from plait.probing.verdict import Comparison, Score
from plait.records import Record, Store
from plait.workers.pool import Place, Pool, Setup, Task

TIMING = 0.1  # largest fraction of a budget for timing the first steps


@dataclass
class Progress:
    """The progress of a probe; `on_progress` is called whenever it changes."""

    work: Work | None = None
    phase: str = "starting"
    started: float = field(default_factory=time.perf_counter)
    done: dict[str, float] = field(default_factory=dict)  # key → test accuracy
    running: dict[str, FleetProgress] = field(default_factory=dict)  # by key
    found_before: int = 0  # how many of those were already in the store
    where: str = ""  # the cluster's machines; empty: this one

    def share(self, trials: Iterable[Trial]) -> float:
        """The fraction of these trials' tokens that is trained."""
        total = done = 0
        for trial in trials:
            total += all_tokens(trial)
            if trial.key in self.done:
                done += all_tokens(trial)
            elif trial.key in self.running:
                done += tokens(trial) * self.running[trial.key]["step"]
        return done / total if total else 1.0


OnProgress = Callable[[Progress], None]
MoreTrials = Callable[[], Sequence[Trial]]


@dataclass(frozen=True)
class Outcome:
    work: Work
    records: dict[str, Record]  # by key
    seconds: float  # of this call
    fresh: int  # trials trained by this call
    replans: tuple[Replan, ...] = ()  # during the run


@dataclass(frozen=True)
class Machine:
    """Where trials are trained. A GPU of this machine serves at most two processes: while one compiles its step, the
    other trains."""

    place: Place
    checkpoint_seconds: float = 10.0

    @property
    def device(self) -> str:
        return self.place.device

    @property
    def processes(self) -> int:
        """How many trials train at once: on this machine, or the number requested on a cluster."""
        workers = self.place.workers or 1
        if self.device == "cpu" or self.place.cluster:
            return workers
        return self.place.local_workers() if self.place.gpus_per_training else min(workers, 2)


def run_all(
    work: Work, store: Store, machine: Machine, on_progress: OnProgress, *, longest_first: bool = False
) -> Outcome:
    """Train every trial, however long it takes. With `longest_first`, several processes end at about the same time."""
    progress = Progress(work, "training")
    _note_recorded(progress, work.trials, store)
    if any(trial.key not in progress.done for trial in work.trials):
        with _Trials(work.candidates, store, machine) as pool:
            trials = sorted(work.trials, key=all_tokens, reverse=True) if longest_first else work.trials
            _train(pool, trials, progress, store, on_progress)
    return _outcome(work, store, progress)


def run_budget(
    candidates: Sequence[Candidate],
    protocol: Protocol,
    budget: float,
    store: Store,
    machine: Machine,
    on_progress: OnProgress,
    *,
    seeds: int | None = None,
    started: float | None = None,
    overrun: bool = True,
) -> Outcome:
    """Train as much as fits into `budget` seconds, counted from `started` (a value of `time.perf_counter()`).

    If not even the shortest trainings fit, they are run anyway; with `overrun=False` a `UserError` is raised.
    """
    began = time.perf_counter() if started is None else started
    if machine.place.cluster and machine.place.workers is None:
        machine = replace(machine, place=replace(machine.place, workers=_room(candidates, store, machine)))
    config = plan.plan_config(candidates, protocol, budget, machine.processes, seeds, machine.device)
    progress = Progress(started=began)
    chosen_plan = plan.stored(store, config, candidates, protocol)
    if chosen_plan is not None:
        scheduler = Scheduler(chosen_plan, store)
        keys = {trial.key for trial in scheduler.begun}
        if scheduler.all_begun and store.has(keys) == keys:
            _note_recorded(progress, scheduler.begun, store)
            return _outcome(scheduler.plan.work, store, progress, scheduler.replans)
    with _Trials(candidates, store, machine) as pool:
        if chosen_plan is None:
            to_measure = to_time(candidates, protocol, machine.device)
            speed = _measured(pool, to_measure, progress, on_progress, TIMING * budget)
            left = budget - (time.perf_counter() - began)
            chosen_plan = plan.fitting(store, config, candidates, protocol, speed, left, overrun=overrun)
        scheduler = Scheduler(chosen_plan, store)
        _follow(scheduler, pool, progress, store, on_progress)
    return _outcome(scheduler.plan.work, store, progress, scheduler.replans)


def expected(
    candidates: Sequence[Candidate],
    protocol: Protocol,
    store: Store,
    machine: Machine,
    on_progress: OnProgress,
    seeds: int = 1,
) -> dict[str, float]:
    """An upper bound of the core-seconds of each architecture, by name."""
    with _Trials(candidates, store, machine) as pool:
        speed = _measured(pool, to_time(candidates, protocol, machine.device), Progress(), on_progress)
    work = plan.with_seeds(candidates, protocol, [seeds] * len(protocol.settings), machine.device)
    return {
        candidate.name: sum(speed.trial(trial) for trial in work.trials if trial.candidate == candidate.name)
        for candidate in candidates
    }


def compare(outcome: Outcome) -> Comparison:
    """The table's numbers, from the records alone."""
    scores = [
        Score(
            trial.candidate, trial.task.name, trial.task.key(), seed["seed"], seed["accuracy"], seed["loss"],
            trial.training.evaluation,
        )
        for trial in outcome.work.trials
        for seed in outcome.records[trial.key].result["seeds"]
    ]  # fmt: skip
    names = [candidate.name for candidate in outcome.work.candidates]
    return Comparison(names, outcome.work.protocol.task_names, scores)


def _room(candidates: Sequence[Candidate], store: Store, machine: Machine) -> int:
    """How many trainings the cluster can currently run at once."""
    with _Trials(candidates, store, machine) as pool:
        return pool.workers


class _Trials:
    """A pool of workers that trains and times trials."""

    def __init__(self, candidates: Sequence[Candidate], store: Store, machine: Machine) -> None:
        from plait.training.ensemble_run import states_of

        mixers = {source.hash: source for candidate in candidates for source in candidate.arch.mixer_sources.values()}
        self._checkpoints, self._seconds = str(states_of(store)), machine.checkpoint_seconds
        setup = Setup.of(store, tuple(mixers.values()))
        # A worker process even if there is only one, so that it is timed under the same conditions as it trains.
        self._pool = Pool(machine.place, setup, store, local_workers=machine.processes, apart=True)

    @property
    def workers(self) -> int:
        return self._pool.workers

    @property
    def where(self) -> str:
        return self._pool.where

    def run(
        self,
        trials: Sequence[Trial],
        on_report: Callable[[str, FleetProgress], object],
        on_done: Callable[[str], object],
        more: MoreTrials = lambda: (),
    ) -> None:
        """Returns when every trial is in the store. When a worker is free and no trial is left, `more` is called."""
        self._pool.run(map(self._task, trials), on_report, on_done, lambda: [self._task(trial) for trial in more()])

    def _task(self, trial: Trial) -> Task:
        args = (trial, self._checkpoints, self._seconds)
        words = f"{trial.candidate} on {trial.task.name}"
        return Task(trial.key, "plait.probing.worker:train_trial", args, (trial.key,), words)

    def time(self, trials: Sequence[Trial], on_timed: Callable[[str], object], most: float) -> dict[str, float]:
        """Seconds per step of each trial, by key, timed with as many processes as will train at once, for about `most`
        seconds in total."""
        per_trial = most * self.workers / self._pool.times(len(trials)) / len(trials)
        tasks = [Task(trial.key, "plait.probing.worker:time_trial", (trial, per_trial)) for trial in trials]
        return dict(zip([trial.key for trial in trials], self._pool.timed(tasks, on_timed, most), strict=True))

    def __enter__(self) -> _Trials:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.stop()


def _measured(
    pool: _Trials, trials: Sequence[Trial], progress: Progress, on_progress: OnProgress, most: float = math.inf
) -> Speed:
    timed: set[str] = set()

    def on_timed(key: str) -> None:
        timed.add(key)
        progress.phase = f"measuring speed, {len(timed)} of {len(trials)}"
        on_progress(progress)

    progress.phase = "measuring speed"
    on_progress(progress)
    return Speed.measured(trials, pool.time(trials, on_timed, most))


def _follow(scheduler: Scheduler, pool: _Trials, progress: Progress, store: Store, on_progress: OnProgress) -> None:
    """Train task after task; seeds and steps of the next task are decided when a worker runs out of trials."""

    def begun(trials: Sequence[Trial]) -> Sequence[Trial]:
        progress.work, progress.phase = scheduler.plan.work, "training"
        _note_recorded(progress, trials, store)
        return trials

    _train(
        pool,
        begun(scheduler.begun),
        progress,
        store,
        on_progress,
        lambda: begun(scheduler.begin_next(progress.running)),
    )


def _train(
    pool: _Trials,
    trials: Sequence[Trial],
    progress: Progress,
    store: Store,
    on_progress: OnProgress,
    more: MoreTrials = lambda: (),
) -> None:
    on_progress(progress)

    def on_report(key: str, now: FleetProgress) -> None:
        progress.running[key], progress.where = now, pool.where
        on_progress(progress)

    def on_done(key: str) -> None:
        if key not in progress.done:
            progress.running.pop(key, None)
            record = store.get(key)
            progress.done[key] = record.result["accuracy"] if record else 0.0
        on_progress(progress)

    pool.run([trial for trial in trials if trial.key not in progress.done], on_report, on_done, more)


def _note_recorded(progress: Progress, trials: Sequence[Trial], store: Store) -> None:
    for key in store.has({trial.key for trial in trials}):
        record = store.get(key)
        if record is not None:
            progress.done[key] = record.result["accuracy"]
            progress.found_before += 1


def _outcome(work: Work, store: Store, progress: Progress, replans: Sequence[Replan] = ()) -> Outcome:
    records = {}
    for key in {trial.key for trial in work.trials}:
        record = store.get(key)
        if record is None:
            raise UserError(f"the record {key} has disappeared from {store.name} while the probe ran; run again.")
        records[key] = record
    fresh = len(records) - progress.found_before
    return Outcome(work, records, time.perf_counter() - progress.started, fresh, tuple(replans))
