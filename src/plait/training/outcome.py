"""What a finished training comes to: the numbers of its record."""

from __future__ import annotations

import math
from typing import Any

from plait.training.job import Job
from plait.training.mfu import mfu
from plait.training.run import Run
from plait.training.trainer import Trainer
from plait.training.validation import perplexity_of


def outcome(
    job: Job, run: Run, trainer: Trainer, *, loss: float, train_loss: float | None, seconds: float, peak: float | None
) -> dict[str, Any]:
    """`loss` is that of the validation text; `seconds` are of the steps; `peak` FLOPs per second of all devices."""
    corpus = job.corpus
    tokens = trainer.step * job.tokens_per_step
    characters = corpus.characters("validation")
    speed = tokens / seconds if seconds else 0.0
    result: dict[str, Any] = {
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
