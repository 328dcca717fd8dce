"""From a job to its result: folder, resume, checkpoints, record. The steps themselves are in `trainer`."""

from __future__ import annotations

import math
import statistics
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from plait.core.errors import UserError
from plait.core.json_files import understood
from plait.core.progress import Stopped, stop_signals
from plait.records import Record, Store, provenance_of
from plait.training import shards
from plait.training.batches import Batches
from plait.training.distributed import Processes
from plait.training.job import KIND, Job
from plait.training.mfu import mfu, peak_of
from plait.training.outcome import outcome
from plait.training.prepare import begun_before_an_edit, claimed, known_result, prepare
from plait.training.run import RUNS, Run, folder_of, write_json
from plait.training.speed import (
    EAGER_STEPS,
    GAIN,
    IN_BETWEEN,
    VALIDATION,
    compile_seconds,
    repays,
    steps_that_fit,
)
from plait.training.trainer import Diverged, Launched, Taken, Trainer
from plait.training.training_log import TrainingLog

LOGGED = 200  # rows in a run's log, about
SAVE_SECONDS = 60.0
_SAVE, _STOP = 1, 2


def _never() -> bool:
    return False


@dataclass(frozen=True)
class Options:
    """What changes how a training runs, but not what comes out."""

    root: Path = RUNS
    activation_checkpointing: bool = False
    compiled: bool | None = None  # None: on a GPU, where the run is long enough to repay it
    save_seconds: float = SAVE_SECONDS
    save_steps: int = 0  # also save every so many steps; 0 = by time alone
    log: tuple[str, ...] = ()  # names of `sinks`
    stopping: Callable[[], bool] = _never  # asked between steps; then everything is saved, and `Interrupted` raised


@dataclass
class Progress:
    """Handed to `report` after every step, in the first process."""

    run: Run
    steps: int
    step: int = 0
    loss: float = math.nan
    validation: float = math.nan
    tokens_per_second: float = 0.0
    mfu: float | None = None  # model FLOPs utilisation, where the device's peak is known
    resumed: int = 0
    note: str = ""


@dataclass
class Interrupted(Stopped):
    """Asked to stop; everything is saved."""

    run: Run
    step: int


Report = Callable[[Progress], None]


def fit(
    job: Job,
    dist: Processes,
    store: Store | None = None,
    options: Options = Options(),  # noqa: B008 (a frozen value)
    *,
    tokenizer: str | None = None,
    report: Report | None = None,
    started: float | None = None,
) -> dict[str, Any]:
    """Train, or go on, or return what an earlier training of the same job gave. `started` (as `time.perf_counter`
    counts) is when a time budget began."""
    started = time.perf_counter() if started is None else started
    run = Run(folder_of(job.key, options.root))
    done = dist.broadcast(known_result(run, job, store) if dist.first else None)
    if done is not None:
        if dist.first:
            run.begin()
        return dict(done)
    if dist.first:
        if store is not None:
            store.require_writable()
        if not run.folder.exists():
            # Data too short for one batch are refused here, before an empty run would be left behind.
            Batches(job.arch, job.corpus, job.recipe, job.seed, dist)
        prepare(run, job, tokenizer)
    dist.barrier()
    with run.locked() if dist.first else nullcontext():
        # Another process may have come to its end since we looked, and has left the lock to us.
        done = dist.broadcast(known_result(run, job, store) if dist.first else None)
        if done is not None:
            return dict(done)
        if dist.first:
            run.begin()
        try:
            with claimed(job, store, run) if dist.first else nullcontext():
                training = _Fit(job, dist, run, options, report)
                try:
                    return training.run_to_end(store, started)
                finally:
                    training.log.close()
        except Diverged as wrong:
            if dist.first:
                run.mark_diverged(str(wrong))
            raise


def fit_alone(
    job: Job,
    store: Store,
    runs: Path,
    *,
    device: str = "cpu",
    log: tuple[str, ...] = (),
    on_progress: Callable[[float], None] = lambda share: None,
    stopping: Callable[[], bool] = _never,
) -> dict[str, Any]:
    """`fit` in this process alone. `on_progress` is told after every step how much of the training is done."""
    alone = Processes(0, 1, torch.device(device))
    return fit(
        job,
        alone,
        store,
        Options(root=runs, log=log, stopping=stopping),
        report=lambda now: on_progress(now.step / now.steps),
    )


@dataclass
class _Fit:
    job: Job
    dist: Processes
    run: Run
    options: Options
    report: Report | None
    seconds: float = 0.0  # of training, over all sittings
    undecided: bool = False  # whether to compile
    eager: list[float] = field(default_factory=list)  # seconds of its first steps
    step_seconds: float = math.nan

    def __post_init__(self) -> None:
        self.log = TrainingLog(self.run, self._say_once)

    def run_to_end(self, store: Store | None, started: float) -> dict[str, Any]:
        compiled = self._compiled(started)
        steps = self._steps(started, bool(compiled))
        trainer = Trainer(
            self.job,
            steps,
            self.dist,
            activation_checkpointing=self.options.activation_checkpointing,
            compiled=bool(compiled),
        )
        self.undecided = compiled is None
        self._resume(trainer)
        self.progress = Progress(self.run, steps, trainer.step, self.log.newest_loss, resumed=trainer.step)
        if self.dist.first:
            self.log.open(self.options.log, self.job.config())
            if not trainer.step:
                self._say(begun_before_an_edit(self.run, self.job))
        alone = peak_of(self.dist.device, self.job.precision)
        self.peak = None if alone is None else alone * self.dist.world
        began = time.time()
        with stop_signals() as asked:
            self._train(trainer, steps, asked)
        return self._finish(trainer, store, began)

    def _compiled(self, started: float) -> bool | None:
        """None: to be decided after some steps."""
        if self.options.compiled is not None:
            return self.options.compiled
        if self.dist.device.type != "cuda" or self.dist.sharded or self.job.recipe.memory:
            return False
        before: bool | None = self.dist.broadcast(self.run.about.get("compiled") if self.dist.first else None)
        if before is not None or self.job.budget.seconds is None:
            return before
        left = self.job.budget.seconds - (time.perf_counter() - started)
        worth = bool(self.dist.broadcast(GAIN * left > compile_seconds(self.job.arch)))
        if self.dist.first:
            self.run.write_about({**self.run.about, "compiled": worth})
        return worth

    def _steps(self, started: float, compiled: bool) -> int:
        """Fixed when a run is first planned; a resumed one keeps them."""
        planned = self.dist.broadcast(self.run.about.get("steps") if self.dist.first else None)
        if planned is None:
            planned = self.job.steps
        if planned is None:
            assert self.job.budget.seconds is not None
            left = self.job.budget.seconds - (time.perf_counter() - started)
            planned = steps_that_fit(
                self.job,
                left,
                self.dist,
                activation_checkpointing=self.options.activation_checkpointing,
                compiled=compiled,
            )
        if self.dist.first and "steps" not in self.run.about:
            self.run.write_about({**self.run.about, "steps": planned})
        return int(planned)

    def _resume(self, trainer: Trainer) -> None:
        saved = shards.newest(self.run.folder)
        if saved is not None:
            with understood(f"{self.run.name}/{saved.folder.name}", "Remove that folder to go on from the one before."):
                trainer.restore(saved)
                kept = saved.plain["fit"]
                self.log.restore(kept)
                self.seconds = kept["seconds"]
        if self.dist.first:
            self.run.truncate_log(trainer.step)

    def _train(self, trainer: Trainer, steps: int, asked: threading.Event) -> None:
        evaluate_every = max(1, steps // VALIDATION)
        log_every = max(1, steps // LOGGED)
        last_save = self.last = time.perf_counter()
        on_the_way: Launched | None = None
        while trainer.step < steps:
            launched = trainer.launch()
            # A GPU computes this step while the numbers of the one before are read and written down.
            if on_the_way is not None:
                self._settle(trainer, on_the_way, log_every)
            on_the_way, step = launched, trainer.step
            evaluate = step % evaluate_every == 0 and step + evaluate_every <= steps
            by_steps = self.options.save_steps and step % self.options.save_steps == 0
            by_time = time.perf_counter() - last_save > self.options.save_seconds
            # Clocks and signals differ between processes, what they do must not.
            wish = self.dist.all_reduce_max(
                _STOP if asked.is_set() or self.options.stopping() else _SAVE if by_steps or by_time else 0
            )
            if evaluate or wish or step == steps or self.dist.device.type != "cuda" or self.undecided:
                self._settle(trainer, on_the_way, log_every)
                on_the_way = None
            if evaluate:
                self._evaluate(trainer)
            if wish >= _SAVE:
                self._save(trainer, must=wish == _STOP)
                last_save = time.perf_counter()
            if wish == _STOP:
                raise Interrupted(self.run, trainer.step)
            if self.undecided:
                self._decide(trainer, steps)
            if self.report is not None and self.dist.first:
                self.report(self.progress)
            if on_the_way is None:
                self.last = time.perf_counter()

    def _settle(self, trainer: Trainer, launched: Launched, log_every: int) -> None:
        taken = trainer.settle(launched)
        now = time.perf_counter()
        self.seconds += now - self.last
        self._note(taken, now - self.last)
        self.last = now
        if taken.step % log_every == 0:
            self.log.step(taken, self.progress.tokens_per_second)

    def _decide(self, trainer: Trainer, steps: int) -> None:
        """Whether to compile, once a few steps have been timed; a resumed run does as it did before."""
        self.eager.append(self.step_seconds)
        if len(self.eager) < EAGER_STEPS:
            return
        self.undecided = False
        worth = repays(statistics.median(self.eager[1:]), steps - trainer.step, self.job.arch)
        worth = bool(self.dist.broadcast(worth))
        if self.dist.first:
            self.run.write_about({**self.run.about, "compiled": worth})
        if worth:
            self.progress.note = f"compiling: about {compile_seconds(self.job.arch):.0f} s, once"
            trainer.compile()

    def _say(self, note: str) -> None:
        self.progress.note = note
        if note and self.report is not None:
            self.report(self.progress)

    def _say_once(self, note: str) -> None:
        """At once: the next step has a note of its own."""
        self._say(note)
        self.progress.note = ""

    def _note(self, taken: Taken, seconds: float) -> None:
        self.log.take(taken.loss)
        self.step_seconds = seconds
        speed = self.job.tokens_per_step / seconds
        before = self.progress.tokens_per_second
        self.progress.tokens_per_second = speed if not before else 0.9 * before + 0.1 * speed
        self.progress.mfu = mfu(self.job, self.progress.tokens_per_second, self.peak)
        self.progress.step, self.progress.loss = taken.step, taken.loss
        self.progress.note = f"step {taken.step} was skipped: its gradient is not finite" if taken.skipped else ""

    def _evaluate(self, trainer: Trainer) -> None:
        """A point of the validation curve; all of them are of the same windows."""
        loss = self.progress.validation = trainer.validation_loss(IN_BETWEEN)
        self.log.evaluation(trainer.step, loss)

    def _save(self, trainer: Trainer, must: bool) -> None:
        plain = {"fit": {**self.log.plain(), "seconds": self.seconds}}
        try:
            trainer.save(self.run.folder, plain)
        except UserError as wrong:
            if must:
                raise
            # The training can go on without; the next one may succeed, and the one before is still there.
            self.progress.note = str(wrong)

    def _finish(self, trainer: Trainer, store: Store | None, began: float) -> dict[str, Any]:
        self._evaluate(trainer)
        loss = trainer.validation_loss()
        if not math.isfinite(loss):
            skipped = trainer.step - trainer.updates
            what = f"the validation loss is {loss} after {trainer.step} steps ({skipped} skipped): nothing is stored."
            raise Diverged(what, self.job.recipe)
        weights = trainer.weights()
        train_loss = self.log.curve[-1][1] if self.log.curve else None
        result = outcome(
            self.job, self.run, trainer, loss=loss, train_loss=train_loss, seconds=self.seconds, peak=self.peak
        )
        if self.dist.first:
            self.run.save_weights(weights)
            write_json(self.run.folder / "result.json", result)
            if store is not None:
                stored = {**result, "curve": self.log.curve, "held_out_curve": self.log.validation}
                store.put(Record.of(KIND, self.job.config(), stored, provenance_of(began, self.seconds)))
            shards.remove_all(self.run.folder)
            self.log.close(result)
        self.dist.barrier()
        if self.report is not None and self.dist.first:
            self.report(self.progress)
        return {**result, "trained_now": True}
