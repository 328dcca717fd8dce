"""One training from beginning to end: its folder, the loop over its steps, checkpoints, log, and its result.

settings    `recipe`: what to train, how and for how long; the result
a step      `trainer`: batch, model, loss, gradients, one update by `optimizer`; the validation loss
the loop    here: takes steps; logs, evaluates and saves checkpoints
on disk     `run`: folder and log;  `checkpoint` and `resume`: resuming;  `sinks`: other loggers
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from plait.core.errors import UserError
from plait.core.files import understood
from plait.core.progress import Stopped, stop_signals
from plait.core.units import duration
from plait.data.stream import require_validation
from plait.model.language_model import perplexity_of, require_weights_fit
from plait.records import Record, Store, provenance_of
from plait.records.store import held
from plait.training.checkpoint import newest_checkpoint
from plait.training.distributed import Processes
from plait.training.recipe import KIND, Job, Trained
from plait.training.resume import restore_trainer, save_trainer
from plait.training.run import RUNS, WEIGHTS, Run, TrainingLog, folder_of, write_json
from plait.training.speed import (
    VALIDATION_SHARE,
    VALIDATIONS,
    CompileDecision,
    compile_seconds,
    peak_of,
    steps_that_fit,
)
from plait.training.trainer import Batches, Diverged, PendingStep, Trainer

NOTED_SECONDS = 30.0  # a shorter validation is not worth a note
LOGGED = 200  # approximate number of rows in a run's log
SAVE_SECONDS = 60.0
_SAVE, _STOP = 1, 2  # requests that a process may make between two steps


def _never() -> bool:
    return False


def _ignore(doing: str) -> None:
    pass


@dataclass(frozen=True)
class Options:
    """Options that change how a training runs but not its result."""

    root: Path = RUNS
    activation_checkpointing: bool = False
    compiled: bool | None = None  # None: on a GPU if the run is long enough to benefit
    save_seconds: float = SAVE_SECONDS
    save_steps: int = 0  # also save every so many steps; 0: only by time
    log: tuple[str, ...] = ()  # names of `sinks`
    on_start: Callable[[str], object] = _ignore  # told what is being done before the first step, in the first process
    stopping: Callable[[], bool] = _never  # called between steps; True: save everything and raise `Interrupted`


@dataclass
class Progress:
    """What `report` is called with after every step and every batch of the final validation, in the first process."""

    run: Run
    steps: int
    step: int = 0
    loss: float = math.nan
    validation: float = math.nan
    tokens_per_second: float = 0.0
    mfu: float | None = None  # model FLOPs utilisation, if the device's peak is known
    resumed: int = 0
    note: str = ""
    validation_tokens: int = 0  # of the final validation
    validation_steps: float = 0.0  # training steps that take about as long as it
    validated: float = 0.0  # the fraction of it that is done

    @property
    def share(self) -> float:
        """The completed fraction of steps and validation together."""
        return (self.step + self.validated * self.validation_steps) / (self.steps + self.validation_steps)

    @property
    def validating(self) -> bool:
        return self.step == self.steps and self.validated < 1 and self.validation_steps > 0


class Interrupted(Stopped):
    """Asked to stop; everything is saved."""

    def __init__(self, run: Run, step: int) -> None:
        super().__init__(f"{run.name} is saved at step {step}")
        self.run, self.step = run, step


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
) -> Trained:
    """Train, or resume, or return the result of an earlier training of the same job. `started`: the
    `time.perf_counter()` at which a time budget began."""
    started = time.perf_counter() if started is None else started
    run = Run(folder_of(job.key, options.root))
    done: Trained | None = dist.broadcast(_stored(job, store, run.folder) if dist.first else None)
    if done is not None:
        if dist.first:
            run.begin()
        return done
    if dist.first and store is not None:
        store.require_writable()
    if not dist.broadcast(run.folder.exists() if dist.first else None):
        # Every process refuses a model too large for its memory, and data too short for one batch or for validation,
        # here: before a run folder is created and not only when the training comes to it.
        if dist.device.type == "cpu" and dist.world == 1:
            require_weights_fit(job.arch, torch.float32.itemsize)
        Batches(job.arch, job.corpus, job.recipe, job.seed, dist)
        require_validation(job.corpus.name, job.corpus.tokens("validation"), job.recipe.seq_len)
    if dist.first:
        run.create(job, tokenizer)
    dist.barrier()
    with run.locked() if dist.first else nullcontext():
        # Another process may have finished the job in the meantime and released the lock.
        done = dist.broadcast(_stored(job, store, run.folder) if dist.first else None)
        if done is not None:
            return done
        if dist.first:
            run.begin()
        try:
            # Among processes that share a store, one trains a job. If only the weights are missing here, no claim is
            # needed.
            claims = dist.first and store is not None and not store.has([job.key])
            with held(store, job.key, run.name) if store is not None and claims else nullcontext():
                training = _Fit(job, dist, run, options, report)
                try:
                    return training.run_to_end(store, started)
                finally:
                    training.log.close()
        except Diverged as wrong:
            if dist.first:
                run.mark_diverged(str(wrong))
            raise


def _stored(job: Job, store: Store | None, folder: Path) -> Trained | None:
    """The result of an earlier training of the same job, if its weights are still in its folder."""
    record = None if store is None else store.get(job.key)
    if record is None or not (folder / WEIGHTS).exists():
        return None
    return Trained.from_dict({**record.result, "key": job.key, "trained_now": False})


def fit_alone(
    job: Job,
    store: Store,
    runs: Path,
    *,
    device: str = "cpu",
    log: tuple[str, ...] = (),
    on_progress: Callable[[float], None] = lambda share: None,
    stopping: Callable[[], bool] = _never,
) -> Trained:
    """`fit` in this process alone. `on_progress` gets the completed fraction of the training after every step."""
    return fit(
        job,
        Processes(0, 1, torch.device(device)),
        store,
        Options(root=runs, log=log, stopping=stopping),
        report=lambda now: on_progress(now.share),
    )


def fit_seeds(
    job: Job,
    seeds: int,
    store: Store,
    runs: Path,
    *,
    device: str = "cpu",
    on_progress: Callable[[float], None] = lambda share: None,
) -> list[Trained]:
    """`fit_alone` with the job's seed and those after it. `on_progress` gets the completed fraction of all of them."""
    return [
        fit_alone(
            replace(job, seed=job.seed + i),
            store,
            runs,
            device=device,
            on_progress=lambda share, i=i: on_progress((i + share) / seeds),  # type: ignore[misc]
        )
        for i in range(seeds)
    ]


class _Fit:
    """The loop over the steps of one training, in one of its processes."""

    def __init__(self, job: Job, dist: Processes, run: Run, options: Options, report: Report | None) -> None:
        self.job, self.dist, self.run, self.options = job, dist, run, options
        self.report = report if dist.first else None
        self.log = TrainingLog(run, self._report_note)
        self.step_seconds = 0.0  # of the last step
        self.seconds = 0.0  # of training, including time before an interruption
        device_peak = peak_of(dist.device, job.precision) if dist.device.type == "cuda" else None
        self.peak = None if device_peak is None else device_peak * dist.world

    def run_to_end(self, store: Store | None, started: float) -> Trained:
        left = (self.job.budget.seconds or math.inf) - (time.perf_counter() - started)
        compiled = self.options.compiled
        self.compiling: CompileDecision | None = None
        on_gpu = self.dist.device.type == "cuda"
        if compiled is None and on_gpu and not self.dist.sharded and not self.job.recipe.memory:
            self.compiling = CompileDecision(self.job, self.run, self.dist, left)
            compiled = self.compiling.at_start
        choices = {"activation_checkpointing": self.options.activation_checkpointing, "compiled": bool(compiled)}
        steps = self._planned_steps(left, **choices)
        self._start("building the model")
        trainer = Trainer(self.job, steps, self.dist, **choices)
        self._resume(trainer)
        self.progress = Progress(self.run, steps, trainer.step, self.log.newest_loss, resumed=trainer.step)
        read = min(self.job.validation_tokens, len(self.job.corpus.tokens("validation")))
        # A step has a forward pass and a backward pass, which takes twice as long.
        self.progress.validation_tokens, self.progress.validation_steps = read, read / self.job.tokens_per_step / 3
        if self.dist.first:
            self.log.open(self.options.log, self.job.config())
            self._report_note(trainer.note)
            if not trainer.step:
                self._report_note(_edited_mixers(self.run, self.job))
        began = time.time()
        with stop_signals() as asked:
            self._train(trainer, steps, asked)
            loss = self._validate(trainer, asked)
        return self._finish(trainer, loss, store, began)

    @property
    def _deciding(self) -> CompileDecision | None:
        """Whether steps are still being timed to decide on compiling."""
        return self.compiling if self.compiling is not None and self.compiling.pending else None

    def _planned_steps(self, left: float, **choices: bool) -> int:
        """The job's number of steps, or as many as fit into `left` seconds. A resumed run keeps its number."""
        steps = self.dist.broadcast(self.run.about.get("steps") if self.dist.first else None)
        if steps is None:
            steps = self.job.steps
        if steps is None:
            self._start("timing a few steps")
            steps = steps_that_fit(self.job, left, self.dist, **choices)
        if self.dist.first and "steps" not in self.run.about:
            self.run.write_about({**self.run.about, "steps": steps})
        return int(steps)

    def _resume(self, trainer: Trainer) -> None:
        saved = newest_checkpoint(self.run.folder) if self.run.resumable else None
        if saved is not None:
            with understood(
                f"{self.run.name}/{saved.folder.name}", "Remove that folder to resume from the previous one."
            ):
                restore_trainer(trainer, saved)
                kept = saved.plain["fit"]
                self.log.restore(kept)
                self.seconds = kept["seconds"]
        if self.dist.first:
            self.run.truncate_log(trainer.step)

    def _train(self, trainer: Trainer, steps: int, asked: threading.Event) -> None:
        """The loop. On a GPU, a step runs while the numbers of the previous one are read and logged."""
        self.log_every = max(1, steps // LOGGED)
        evaluate_every = max(1, steps // VALIDATIONS)
        self.last_read = self.last_save = time.perf_counter()
        pending: PendingStep | None = None
        if trainer.step < steps:
            self._start("compiling, then the first step" if trainer.compiled else "the first step")
        while trainer.step < steps:
            launched = trainer.launch()
            if pending is not None:
                self._read(trainer, pending)
            pending, step = launched, trainer.step
            evaluate = step % evaluate_every == 0 and step + evaluate_every <= steps
            request = self._save_or_stop(step, asked)
            on_gpu, deciding = self.dist.device.type == "cuda", self._deciding
            if evaluate or request or step == steps or not on_gpu or deciding:
                self._read(trainer, pending)
                pending = None
            if evaluate:
                self._evaluate(trainer)
            if request:
                self._save(trainer, must=request == _STOP)
            if request == _STOP:
                raise Interrupted(self.run, trainer.step)
            if deciding and deciding.after_step(self.step_seconds, steps - step):
                self.progress.note = f"compiling: about {compile_seconds(self.job.arch):.0f} s, once"
                trainer.compile()
            if self.report is not None:
                self.report(self.progress)
            if pending is None:
                self.last_read = time.perf_counter()

    def _save_or_stop(self, step: int, asked: threading.Event) -> float:
        """Whether to save or stop after a step. All processes must agree, although their clocks and signals differ."""
        stop = self._stop_asked(asked)
        by_steps = self.options.save_steps and step % self.options.save_steps == 0
        by_time = time.perf_counter() - self.last_save > self.options.save_seconds
        return self.dist.all_reduce_max(_STOP if stop else _SAVE if by_steps or by_time else 0)

    def _stop_asked(self, asked: threading.Event) -> bool:
        return asked.is_set() or self.options.stopping()

    def _read(self, trainer: Trainer, pending: PendingStep) -> None:
        """Wait for a step and log its result."""
        done = trainer.wait(pending)
        now = time.perf_counter()
        self.step_seconds, self.last_read = now - self.last_read, now
        self.seconds += self.step_seconds
        progress, speed = self.progress, self.job.tokens_per_step / self.step_seconds
        before = progress.tokens_per_second
        progress.tokens_per_second = speed if not before else 0.9 * before + 0.1 * speed
        progress.mfu = self.job.mfu(progress.tokens_per_second, self.peak)
        progress.step, progress.loss = done.step, done.loss
        progress.note = f"step {done.step} was skipped: its gradient is not finite" if done.skipped else ""
        self.log.add_loss(done.loss)
        if done.step % self.log_every == 0:
            self.log.write_step(done.step, done.lr, done.norm, progress.tokens_per_second)

    def _evaluate(self, trainer: Trainer) -> None:
        """Add a point to the validation curve; all points use the same windows."""
        loss = self.progress.validation = trainer.validation_loss(VALIDATION_SHARE)
        self.log.write_validation(trainer.step, loss)

    def _validate(self, trainer: Trainer, asked: threading.Event) -> float:
        """The loss on the whole validation text. It may take longer than the training, so it reports its progress and
        can be stopped."""
        progress, expected = self.progress, self.progress.validation_steps * self.step_seconds
        if expected > max(NOTED_SECONDS, self.seconds):
            self._report_note(
                f"validation on {progress.validation_tokens:,} tokens takes about {duration(expected)}, longer than "
                "the training; --validation-tokens chooses fewer"
            )

        def on_batch(done: int, total: int) -> None:
            progress.validated = done / total
            if self.dist.any(self._stop_asked(asked)):
                self._save(trainer, must=True)
                raise Interrupted(self.run, trainer.step)
            if self.report is not None:
                self.report(progress)

        return trainer.validation_loss(on_batch=on_batch)

    def _save(self, trainer: Trainer, must: bool) -> None:
        try:
            save_trainer(trainer, self.run.folder, {"fit": {**self.log.state(), "seconds": self.seconds}})
        except UserError as wrong:
            if must:
                raise
            # The training continues: the previous checkpoint still exists, and the next save may succeed.
            self.progress.note = str(wrong)
        self.last_save = time.perf_counter()

    def _finish(self, trainer: Trainer, loss: float, store: Store | None, began: float) -> Trained:
        self._evaluate(trainer)
        if not math.isfinite(loss):
            skipped = trainer.step - trainer.updates
            what = f"the validation loss is {loss} after {trainer.step} steps ({skipped} skipped): nothing is stored."
            raise Diverged(what, self.job.recipe)
        weights = trainer.weights()
        result = self._result(trainer, loss)
        if self.dist.first:
            self.run.save_weights(weights)
            write_json(self.run.folder / "result.json", result.stored())
            if store is not None:
                curves = {"curve": self.log.curve, "held_out_curve": self.log.validation}
                provenance = provenance_of(began, self.seconds)
                store.put(Record.of(KIND, self.job.config(), {**result.stored(), **curves}, provenance))
            self.run.remove_checkpoints()
            self.log.close(result.stored())
        self.dist.barrier()
        if self.report is not None:
            self.report(self.progress)
        return result

    def _result(self, trainer: Trainer, loss: float) -> Trained:
        """The result; `loss` is the validation loss."""
        job, corpus, tokens = self.job, self.job.corpus, trainer.step * self.job.tokens_per_step
        speed = tokens / self.seconds if self.seconds else 0.0
        validation, characters = corpus.tokens("validation"), corpus.characters("validation")
        bits = (
            loss / math.log(2) * len(validation) / characters if characters and job.arch.header.kind == "lm" else None
        )
        return Trained(
            key=job.key,
            run=self.run.name,
            folder=str(self.run.folder),
            spec=job.arch.text,
            data=corpus.name,
            loss=loss,
            perplexity=perplexity_of(loss),
            bits_per_character=bits,
            train_loss=self.log.curve[-1][1] if self.log.curve else None,
            steps=trainer.step,
            skipped=trainer.step - trainer.updates,
            tokens=tokens,
            flops=tokens * job.flops_per_token,
            seconds=self.seconds,
            tokens_per_second=speed,
            mfu=job.mfu(speed, self.peak),
            params=sum(p.numel() for p in trainer.model.parameters()),
            trained_now=True,
            entropy=corpus.entropy,
            above_entropy=None if corpus.entropy is None else loss / corpus.entropy - 1,
            text_kept=not bits or corpus.tokenizer.keeps_text(validation),
        )

    def _start(self, doing: str) -> None:
        if self.dist.first:
            self.options.on_start(doing)

    def _report_note(self, note: str) -> None:
        """Report a note immediately; the next report no longer has it."""
        if note and self.report is not None:
            self.progress.note = note
            self.report(self.progress)
            self.progress.note = ""


def _edited_mixers(run: Run, job: Job) -> str:
    """A note if the same training was started with earlier versions of the user's mixer files; otherwise empty."""
    mine, sources = job.config(), job.arch.identity().get("sources", {})
    for other in run.folder.parent.glob("train-*/run.json") if sources else ():
        theirs = Run(other.parent).config
        same = {**theirs, "sources": sources} == mine
        if same and theirs != mine and not (other.parent / "result.json").exists():
            changed = ", ".join(name for name, h in sources.items() if theirs.get("sources", {}).get(name) != h)
            return (
                f"{changed} has changed since {other.parent.name} was started with it, so this is a new training and "
                "starts from step 0"
            )
    return ""
