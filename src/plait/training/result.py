"""What a training leaves: the losses it logs while it runs, and its result.

`TrainingLog` has the learning curves, the rows of `log.jsonl`, and the sinks that were asked for. The curves are in the
checkpoints and in the record; nothing is lost with the file or the sinks. The result is looked up before a training
starts, claimed while it runs, computed and stored at its end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypedDict, cast

from plait.core.errors import UserError
from plait.records import Record, Store, provenance_of
from plait.records.claims import held
from plait.training.batches import perplexity_of
from plait.training.job import KIND, Job
from plait.training.run import LogRow, Run
from plait.training.sinks import Logged, Sinks, open_sinks
from plait.training.speed import mfu
from plait.training.trainer import StepResult, Trainer

Curve = list[list[float]]  # of [step, loss]


class LogState(TypedDict):
    """The log in a checkpoint."""

    curve: Curve
    validation: Curve
    pending: list[float]


@dataclass
class TrainingLog:
    """`open` it in the first process: in the others the curves are kept, and nothing is written."""

    run: Run
    warn: Callable[[str], object]  # told what could not be written
    curve: Curve = field(default_factory=list)  # mean training loss since the last point
    validation: Curve = field(default_factory=list)
    pending: list[float] = field(default_factory=list)  # losses since the last logged step
    sinks: Sinks | None = None
    opened: bool = False

    def open(self, names: tuple[str, ...], config: Mapping[str, Any]) -> None:
        self.opened = True
        if names:
            folder = self.run.folder
            self.sinks = open_sinks(names, Logged(self.run.name, folder, folder.parent, config), self.warn)

    @property
    def newest_loss(self) -> float:
        newest = [*(loss for _, loss in self.curve[-1:]), *self.pending[-1:]]
        return newest[-1] if newest else math.nan

    def add_loss(self, loss: float) -> None:
        if math.isfinite(loss):
            self.pending.append(loss)

    def write_step(self, done: StepResult, tokens_per_second: float) -> None:
        """A row, with the mean of the losses since the one before."""
        mean = sum(self.pending) / len(self.pending) if self.pending else None
        self.pending = []
        if mean is not None:
            self.curve.append([done.step, mean])
        norm = done.norm if math.isfinite(done.norm) else None
        speed = round(tokens_per_second)
        self._write({"step": done.step, "loss": mean, "lr": done.lr, "norm": norm, "tokens_per_second": speed})
        if self.sinks is not None:
            rates = {"lr": done.lr, "gradient_norm": norm, "tokens_per_second": speed}
            self.sinks.log(done.step, {"loss/train": mean, **rates})

    def write_validation(self, step: int, loss: float) -> None:
        """A point of the validation curve; JSON has no numbers that are not finite."""
        finite = math.isfinite(loss)
        if finite:
            self.validation.append([step, loss])
        self._write({"step": step, "validation": loss if finite else None})
        if self.sinks is not None:
            self.sinks.log(step, {"loss/validation": loss})

    def _write(self, row: LogRow) -> None:
        if not self.opened:
            return
        try:
            self.run.log(row)
        except UserError as wrong:  # such as a full disk
            self.warn(str(wrong))

    def close(self, result: Result | None = None) -> None:
        """With the result, or without where the training was interrupted."""
        if self.sinks is not None:
            self.sinks.close(result)

    def state(self) -> LogState:
        return {"curve": self.curve, "validation": self.validation, "pending": self.pending}

    def restore(self, state: LogState) -> None:
        self.curve, self.validation, self.pending = state["curve"], state["validation"], state["pending"]


class _AlwaysThere(TypedDict):
    run: str
    folder: str
    spec: str
    data: str
    loss: float  # of the validation text, nats per token
    perplexity: float
    bits_per_character: float | None
    train_loss: float | None  # the last one logged
    steps: int
    skipped: int  # steps whose gradient was not finite
    tokens: int
    flops: float
    seconds: float
    tokens_per_second: float
    mfu: float | None
    params: int


class Result(_AlwaysThere, total=False):
    """A training's result as `result.json` and the record have it."""

    entropy: float  # of the data, where it is known
    above_entropy: float
    text_kept: bool  # False: the tokenizer drops characters
    trained_now: bool


def stored_result(run: Run, job: Job, store: Store | None) -> Result | None:
    """What an earlier training of the same job gave, where its weights are still there."""
    record = None if store is None else store.get(job.key)
    if record is not None and (run.folder / "weights.safetensors").exists():
        found = cast("Result", record.result)
        return {**found, "trained_now": False}
    return None


def claimed(job: Job, store: Store | None, run: Run) -> AbstractContextManager[None]:
    """Of all who share a store one trains a job. No claim is needed where only the weights are missing here."""
    if store is None or store.has([job.key]):
        return nullcontext()
    return held(store, job.key, run.name)


def result_of(
    job: Job, run: Run, trainer: Trainer, *, loss: float, train_loss: float | None, seconds: float, peak: float | None
) -> Result:
    """`loss` is that of the validation text, `seconds` the time of the steps, `peak` the peak FLOPs per second."""
    corpus = job.corpus
    tokens = trainer.step * job.tokens_per_step
    characters = corpus.characters("validation")
    speed = tokens / seconds if seconds else 0.0
    result: Result = {
        "run": run.name,
        "folder": str(run.folder),
        "spec": job.arch.text,
        "data": corpus.name,
        "loss": loss,
        "perplexity": perplexity_of(loss),
        "bits_per_character": loss / math.log(2) * len(corpus.tokens("validation")) / characters
        if characters and job.arch.header.kind == "lm"
        else None,
        "train_loss": train_loss,
        "steps": trainer.step,
        "skipped": trainer.step - trainer.updates,
        "tokens": tokens,
        "flops": tokens * job.flops_per_token,
        "seconds": seconds,
        "tokens_per_second": speed,
        "mfu": mfu(job, speed, peak),
        "params": sum(p.numel() for p in trainer.model.parameters()),
    }
    if result["bits_per_character"] and not corpus.tokenizer.keeps_text(corpus.tokens("validation")):
        result["text_kept"] = False
    if corpus.entropy is not None:
        result |= {"entropy": corpus.entropy, "above_entropy": loss / corpus.entropy - 1}
    return result


def store_result(store: Store, job: Job, result: Result, log: TrainingLog, *, began: float, seconds: float) -> None:
    """The record: the result with its learning curves."""
    with_curves = {**result, "curve": log.curve, "held_out_curve": log.validation}
    store.put(Record.of(KIND, job.config(), with_curves, provenance_of(began, seconds)))
