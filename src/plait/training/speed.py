"""How fast this machine trains: steps that fit a budget, and whether compiling repays."""

from __future__ import annotations

import statistics
import time

from plait.core.errors import UserError
from plait.model.architecture import Architecture
from plait.model.backbone import repeated_pattern
from plait.training.distributed import Processes
from plait.training.job import Job
from plait.training.trainer import Trainer

WARM_UP = 2
MEASURED = 50  # steps, or
MEASURING = 0.05  # of the time, whichever is less
SAFETY = 1.03  # checkpoints, logging, and a machine that is rarely as quick again as in its first seconds
VALIDATION = 5  # points of the validation curve, each on the same share of the text; the final loss is of all of it
IN_BETWEEN = 1 / 16


#: Steps timed before it is decided whether to compile; of a step's time, what compiling saves at least (a Transformer,
#: whose kernels leave little to fuse; others gain more), as measured on an H200.
EAGER_STEPS = 5
GAIN = 0.08
COMPILE_SECONDS = 8.0  # of one block


class TooShort(UserError):
    """The time holds not one step."""


def steps_that_fit(job: Job, left: float, dist: Processes, *, activation_checkpointing: bool, compiled: bool) -> int:
    """Steps that take `left` seconds with the evaluations among them, from some steps taken on a throw-away model."""
    started = time.perf_counter()
    trial = Trainer(job, 10_000, dist, activation_checkpointing=activation_checkpointing, compiled=compiled)
    took = []
    for i in range(WARM_UP + MEASURED):
        begun = time.perf_counter()
        trial.advance()
        took.append(time.perf_counter() - begun)
        # Clocks differ between processes, the steps that they take together must not.
        if dist.any(i > WARM_UP and time.perf_counter() - started > MEASURING * left):
            break
    begun = time.perf_counter()
    trial.validation_loss(IN_BETWEEN)
    whole = (time.perf_counter() - begun) / IN_BETWEEN
    evaluating = whole * (1 + VALIDATION * IN_BETWEEN)
    spent = time.perf_counter() - started
    seconds = statistics.median(took[WARM_UP:] or took)
    # All processes do what the first has measured.
    fitting = int(dist.broadcast(int((left - spent - evaluating) / (SAFETY * seconds))))
    if fitting < 1:
        given = f"{max(0.0, left):.0f} s"  # starting up alone may take longer than was given
        raise TooShort(f"{given} are too few: a step takes {seconds:.2g} s here, an evaluation {whole:.2g} s.")
    return fitting


def compile_seconds(arch: Architecture) -> float:
    """What compiling costs, once: of each different pattern of blocks (benchmarks/results, H200)."""
    period = repeated_pattern(arch.layers)
    distinct = {arch.layers[i : i + period] for i in range(0, len(arch.layers), period)}
    return COMPILE_SECONDS * sum(map(len, distinct))


def repays(step_seconds: float, steps: int, arch: Architecture) -> bool:
    """Whether so many steps, each of so many seconds without, are enough for compiling to save more than it costs."""
    return GAIN * step_seconds * steps > compile_seconds(arch)
