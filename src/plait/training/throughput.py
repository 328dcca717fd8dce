"""How fast a model trains: some steps of the real trainer on random tokens, timed.

Speed is of the steps after the first ones, which compile and fill caches; the clock is read only before and after them,
so the device is kept as busy as in a long run.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from plait.core.errors import UserError
from plait.data import Corpus
from plait.data.simple_tokenizers import Ids
from plait.model.architecture import architecture
from plait.training.distributed import Processes, precision_on, usable
from plait.training.job import Budget, Job
from plait.training.mfu import mfu, peak_of
from plait.training.recipe import Recipe
from plait.training.trainer import Trainer

WARM_UP = 3


@dataclass(frozen=True)
class Throughput:
    spec: str
    compiled: bool
    tokens_per_second: float
    step_seconds: float
    first_step_seconds: float  # of the very first step; compiled, most of it is compiling
    peak_bytes: int | None  # of device memory; None on a CPU
    mfu: float | None
    loss: float  # after the last step: the same model and tokens come to the same, compiled or not

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Warm:
    """A trainer that has taken its first steps, and may take as many more as it was made for."""

    spec: str
    job: Job
    trainer: Trainer
    place: torch.device
    first_step_seconds: float


def throughput(
    spec: str,
    *,
    batch: int = 8,
    seq_len: int = 4096,
    vocab: int = 50257,
    device: str = "cpu",
    precision: str = "",
    compiled: bool = False,
    steps: int = 10,
    recipe: Recipe | None = None,
) -> Throughput:
    """Train `spec` with a vocabulary of `vocab` for `WARM_UP + steps` steps of batch × seq_len random tokens."""
    warm = warmed(
        spec, batch=batch, seq_len=seq_len, vocab=vocab, device=device, precision=precision, compiled=compiled,
        steps=steps, recipe=recipe,
    )  # fmt: skip
    return timed(warm, steps)


def warmed(
    spec: str,
    *,
    batch: int = 8,
    seq_len: int = 4096,
    vocab: int = 50257,
    device: str = "cpu",
    precision: str = "",
    compiled: bool = False,
    steps: int = 10,
    recipe: Recipe | None = None,
) -> Warm:
    """The first `WARM_UP` steps of such a training."""
    if steps < 1:
        raise UserError(f"steps={steps}: at least one step is timed.")
    arch = architecture(spec)
    arch = type(arch)(arch.header.with_vocabulary(vocab), arch.layers)
    chosen = (recipe or Recipe()).with_values({"batch": batch, "seq_len": seq_len})
    total = WARM_UP + steps
    corpus = random_corpus(vocab, (total + 2) * batch * seq_len)
    job = Job(arch, corpus, chosen, Budget(steps=total), precision=precision or precision_on(device))
    place = torch.device(usable(device))
    if place.type == "cuda":
        torch.cuda.reset_peak_memory_stats(place)
    begun = time.perf_counter()
    trainer = Trainer(job, total, Processes(0, 1, place), compiled=compiled)
    trainer.advance()
    first = time.perf_counter() - begun
    for _ in range(WARM_UP - 1):
        trainer.advance()
    return Warm(spec, job, trainer, place, first)


def timed(warm: Warm, steps: int) -> Throughput:
    """The next `steps` steps, and how long they take."""
    job, trainer, place = warm.job, warm.trainer, warm.place
    begun = time.perf_counter()
    before = trainer.launch()
    for _ in range(steps - 1):
        now = trainer.launch()
        trainer.settle(before)
        before = now
    loss = trainer.settle(before).loss
    seconds = (time.perf_counter() - begun) / steps
    speed = job.tokens_per_step / seconds
    peak = torch.cuda.max_memory_allocated(place) if place.type == "cuda" else None
    share = mfu(job, speed, peak_of(place, job.precision))
    return Throughput(warm.spec, trainer.compiled, speed, seconds, warm.first_step_seconds, peak, share, loss)


def random_corpus(vocab: int, tokens: int) -> Corpus:
    """Tokens without any pattern, the same in every process."""
    drawn = np.random.default_rng(0).integers(vocab, size=tokens, dtype=np.uint32)
    split = {"train": drawn, "validation": drawn[: len(drawn) // 8], "test": drawn[: len(drawn) // 8]}
    return Corpus("random", Ids(vocab), "", None, split, lambda _: 0, lambda _: 0)
