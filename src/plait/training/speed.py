"""Training speed on this machine: MFU, how many steps fit a time budget, and whether compiling pays off.

MFU is model FLOPs utilisation (Chowdhery et al. 2022, arXiv:2204.02311, App. B): the FLOPs of the model's arithmetic as
a fraction of the device's peak. Recomputed and masked-out work does not count, so it is at most one. Peaks are the
vendors' for dense products: bf16 with fp32 sums, and fp32 without tensor cores (which torch does not use for fp32
unless told to). For a device that is not in the table MFU is unknown.

`WarmTraining` times some steps of the real trainer on random tokens. The first steps compile and fill caches, and are
not timed. The clock is read only before the first and after the last timed step, so that the device is as busy as in a
long run.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass

import numpy as np
import torch

from plait.core.errors import UserError
from plait.data import Corpus
from plait.data.tokenizers import Ids
from plait.model.architecture import Architecture, architecture
from plait.model.compiled_blocks import repeated_pattern
from plait.ops.gpu import compiler_on
from plait.ops.paths import precision_on
from plait.training.distributed import Processes, usable
from plait.training.recipe import Budget, Job, Recipe
from plait.training.run import Run
from plait.training.trainer import Trainer

#: Part of a device's name (the first match counts), and its FLOPs per second in bf16 and in fp32.
PEAKS: tuple[tuple[str, float, float], ...] = (
    ("B300", 2250e12, 75e12),
    ("B200", 2250e12, 75e12),
    ("H200", 989.4e12, 66.9e12),
    ("GH200", 989.4e12, 66.9e12),
    ("H100 PCIe", 756.5e12, 51.2e12),
    ("H100 NVL", 835.5e12, 60e12),
    ("H100", 989.4e12, 66.9e12),
    ("H800", 989.4e12, 66.9e12),
    ("H20", 148e12, 44e12),
    ("A100", 312e12, 19.5e12),
    ("A800", 312e12, 19.5e12),
    ("A10G", 70e12, 35e12),
    ("A10", 125e12, 31.2e12),
    ("A40", 149.7e12, 37.4e12),
    ("L40S", 362e12, 91.6e12),
    ("L40", 181e12, 90.5e12),
    ("L4", 121e12, 30.3e12),
    ("RTX 5090", 209.5e12, 104.8e12),
    ("RTX 4090", 165.2e12, 82.6e12),
    ("RTX 3090", 71e12, 35.6e12),
    ("RTX 6000 Ada", 364.2e12, 91.1e12),
    ("RTX A6000", 154.8e12, 38.7e12),
)

#: Points of the validation curve, each on this fraction of the validation text; the final loss is on all of it.
VALIDATIONS = 5
VALIDATION_SHARE = 1 / 16

# The steps that fit a time budget are measured after `WARM_UP` steps, over `MEASURED` steps or this fraction of the
# time.
WARM_UP = 2
MEASURED = 50
MEASURING = 0.05
SAFETY = 1.03  # margin for checkpoints and logging, and because machines slow down after the first seconds

# Compiling, measured on an H200. A Transformer gains least: its kernels leave little to fuse.
EAGER_STEPS = 5  # timed before the decision
GAIN = 0.08  # smallest fraction of a step's time that is saved
COMPILE_SECONDS = 8.0  # per block


def peak_flops(device_name: str, precision: str) -> float | None:
    """FLOPs per second; None for a device that is not in the table."""
    for name, bf16, fp32 in PEAKS:
        if name in device_name:
            return bf16 if precision == "bf16" else fp32
    return None


def peak_of(device: torch.device, precision: str) -> float | None:
    return peak_flops(torch.cuda.get_device_name(device), precision) if device.type == "cuda" else None


class TooShort(UserError):
    """Not even one step fits the time budget."""


def steps_that_fit(job: Job, left: float, dist: Processes, *, activation_checkpointing: bool, compiled: bool) -> int:
    """Steps that fit into `left` seconds together with their evaluations, estimated from steps of a throw-away
    model."""
    started = time.perf_counter()
    trial = Trainer(job, 10_000, dist, activation_checkpointing=activation_checkpointing, compiled=compiled)
    took = []
    for i in range(WARM_UP + MEASURED):
        begun = time.perf_counter()
        trial.advance()
        took.append(time.perf_counter() - begun)
        # All processes must take the same number of steps, although their clocks differ.
        if dist.any(i > WARM_UP and time.perf_counter() - started > MEASURING * left):
            break
    begun = time.perf_counter()
    trial.validation_loss(VALIDATION_SHARE)
    whole_evaluation = (time.perf_counter() - begun) / VALIDATION_SHARE
    evaluating = whole_evaluation * (1 + VALIDATIONS * VALIDATION_SHARE)
    spent = time.perf_counter() - started
    seconds = statistics.median(took[WARM_UP:] or took)
    steps = int(dist.broadcast(int((left - spent - evaluating) / (SAFETY * seconds))))  # as the first process measured
    if steps < 1:
        available = f"{max(0.0, left):.0f} s"  # start-up alone may have used up the time
        evaluation = f"an evaluation {whole_evaluation:.2g} s"
        raise TooShort(f"{available} are too few: a step takes {seconds:.2g} s here, {evaluation}; give more --time.")
    return steps


def compile_seconds(arch: Architecture) -> float:
    """Seconds that compiling takes: a fixed time per block of each distinct pattern (benchmarks/results, H200)."""
    period = repeated_pattern(arch.layers)
    distinct = {arch.layers[i : i + period] for i in range(0, len(arch.layers), period)}
    return COMPILE_SECONDS * sum(map(len, distinct))


def repays(step_seconds: float, steps: int, arch: Architecture) -> bool:
    """Whether compiling saves more time than it costs; `step_seconds` is the time of an eager step."""
    return GAIN * step_seconds * steps > compile_seconds(arch)


class CompileDecision:
    """Whether a run on a GPU compiles its blocks: as it did before an interruption, otherwise if compiling pays off.
    `at_start` is None if a few steps have to be timed first; `after_step` then decides."""

    def __init__(self, job: Job, run: Run, dist: Processes, left: float) -> None:
        """`left` is the rest of a time budget, in seconds."""
        self._job, self._run, self._dist = job, run, dist
        self._eager_seconds: list[float] = []
        self.at_start = self._at_start(left)
        self.pending = self.at_start is None

    def _at_start(self, left: float) -> bool | None:
        before: bool | None = self._dist.broadcast(self._run.about.get("compiled") if self._dist.first else None)
        if not compiler_on(self._dist.device):
            return False
        if before is not None or self._job.budget.seconds is None:
            return before
        return self._keep(GAIN * left > compile_seconds(self._job.arch))

    def after_step(self, seconds: float, steps_left: int) -> bool:
        """Call it after each step while `pending`; True: compile now."""
        self._eager_seconds.append(seconds)
        if len(self._eager_seconds) < EAGER_STEPS:
            return False
        self.pending = False
        return self._keep(repays(statistics.median(self._eager_seconds[1:]), steps_left, self._job.arch))

    def _keep(self, worth: bool) -> bool:
        """Store the decision of the first process, for all processes and for a resumed run."""
        worth = bool(self._dist.broadcast(worth))
        if self._dist.first:
            self._run.write_about({**self._run.about, "compiled": worth})
        return worth


UNTIMED = 3


@dataclass(frozen=True)
class Throughput:
    spec: str
    compiled: bool
    tokens_per_second: float
    step_seconds: float
    first_step_seconds: float  # mostly compiling, if the model is compiled
    peak_bytes: int | None  # of device memory; None on a CPU
    mfu: float | None
    loss: float  # after the last step: equal for the same model and tokens, compiled or not


class WarmTraining:
    """A training of `spec` with a vocabulary of `vocab`, in steps of batch × seq_len random tokens, that has taken its
    first `UNTIMED` steps; `time` takes up to `steps` more."""

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
        arch = architecture(spec).with_vocabulary(vocab)
        total = UNTIMED + steps
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
        for _ in range(UNTIMED - 1):
            self.trainer.advance()

    def time(self, steps: int | None = None) -> Throughput:
        """Take the next `steps` steps, by default all, and time them."""
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
