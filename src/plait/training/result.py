"""The result of a training: looked up before it starts, claimed while it is trained, computed and stored at its end."""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from plait.records import Record, Store, provenance_of
from plait.records.claims import held
from plait.training.job import KIND, Job
from plait.training.run import Run
from plait.training.speed import mfu
from plait.training.trainer import Trainer
from plait.training.training_log import TrainingLog
from plait.training.validation import perplexity_of

#: What `result.json` and the record contain.
Result = dict[str, Any]


def stored_result(run: Run, job: Job, store: Store | None) -> Result | None:
    """The result of an earlier training of the same job, if its weights still exist."""
    record = None if store is None else store.get(job.key)
    if record is not None and (run.folder / "weights.safetensors").exists():
        return {**record.result, "trained_now": False}
    return None


def claimed(job: Job, store: Store | None, run: Run) -> AbstractContextManager[None]:
    """Claim the job, so that only one of the processes that share a store trains it. No claim is needed if the store
    has the result and only the weights are missing here."""
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
