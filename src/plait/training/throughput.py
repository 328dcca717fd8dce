"""How fast a model trains: some steps of the real trainer on random tokens, timed.

The first steps compile and fill caches, and are not timed. The clock is read only before and after the others, so that
the device is as busy as in a long run.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass

import numpy as np
import torch

from plait.core.errors import UserError
from plait.data import Corpus
from plait.data.tokenizers import Ids
from plait.model.architecture import Architecture, architecture
from plait.training.distributed import Processes, precision_on, usable
from plait.training.recipe import Budget, Job, Recipe
from plait.training.speed import peak_of
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

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


class WarmTraining:
    """A training of `spec` with a vocabulary of `vocab`, in steps of batch × seq_len random tokens, that has taken its
    first `WARM_UP` steps; `time` takes up to `steps` more."""

    def __init__(
        self,
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
    ) -> None:
        if steps < 1:
            raise UserError(f"steps={steps}: at least one step is timed.")
        arch = architecture(spec)
        arch = Architecture(arch.header.with_vocabulary(vocab), arch.layers)
        total = WARM_UP + steps
        self.spec, self.steps = spec, steps
        self.job = Job(
            arch,
            random_corpus(vocab, (total + 2) * batch * seq_len),
            (recipe or Recipe()).with_values({"batch": batch, "seq_len": seq_len}),
            Budget(steps=total),
            precision=precision or precision_on(device),
        )
        self.device = torch.device(usable(device))
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
        begun = time.perf_counter()
        self.trainer = Trainer(self.job, total, Processes(0, 1, self.device), compiled=compiled)
        self.trainer.advance()
        self.first_step_seconds = time.perf_counter() - begun
        for _ in range(WARM_UP - 1):
            self.trainer.advance()

    def time(self, steps: int | None = None) -> Throughput:
        """The next `steps` steps, by default all, and how long they take."""
        steps = self.steps if steps is None else steps
        begun = time.perf_counter()
        pending = self.trainer.launch()
        for _ in range(steps - 1):
            launched = self.trainer.launch()
            self.trainer.wait(pending)
            pending = launched
        loss = self.trainer.wait(pending).loss
        seconds = (time.perf_counter() - begun) / steps
        speed = self.job.tokens_per_step / seconds
        return Throughput(
            self.spec,
            self.trainer.compiled,
            speed,
            seconds,
            self.first_step_seconds,
            torch.cuda.max_memory_allocated(self.device) if self.device.type == "cuda" else None,
            self.job.mfu(speed, peak_of(self.device, self.job.precision)),
            loss,
        )


def random_corpus(vocab: int, tokens: int) -> Corpus:
    """Tokens without any pattern, the same in every process."""
    drawn = np.random.default_rng(0).integers(vocab, size=tokens, dtype=np.uint32)
    split = {"train": drawn, "validation": drawn[: len(drawn) // 8], "test": drawn[: len(drawn) // 8]}
    return Corpus("random", Ids(vocab), "", None, split, lambda _: 0, lambda _: 0)
