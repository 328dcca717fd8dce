"""How long a plan will take on this machine, from timing a few steps of up to three models of each architecture.

Seconds per token of the other models are interpolated in log-log space over FLOPs per token; outside the timed range
they are proportional to FLOPs. Models whose step would take longer than `LONGEST_STEP` are not timed but extrapolated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from plait.data import Corpus
from plait.scaling.plan import Plan, PlannedRun

LONGEST_STEP = 5.0  # seconds; a model whose step is expected to take longer is not timed
TIMED = 3  # models per architecture
STEPS = 3
_FIRST_GUESS = 1e9  # FLOPs per second, before anything is timed: a slow core


@dataclass(frozen=True)
class Price:
    """How long one run takes."""

    run: PlannedRun
    seconds: float


@dataclass(frozen=True)
class Speed:
    """Measured seconds per token of one architecture, at increasing FLOPs per token."""

    flops: Sequence[float]
    seconds: Sequence[float]

    def token_seconds(self, flops: float) -> float:
        x, y = np.log(self.flops), np.log(self.seconds)
        nearest = float(np.interp(math.log(flops), x, y))
        beyond = math.log(flops) - float(np.clip(math.log(flops), x[0], x[-1]))
        return math.exp(nearest + beyond)


def price(plan: Plan, corpus: Corpus, device: str = "cpu") -> list[Price]:
    """Time the plan's models here; the seconds each run would take by itself."""
    speeds = {name: _timed(plan, name, corpus, device) for name in dict.fromkeys(r.architecture for r in plan.runs)}
    return [
        Price(run, run.tokens * speeds[run.architecture].token_seconds(run.flops / run.tokens)) for run in plan.runs
    ]


def given_speed(plan: Plan, flops_per_second: float, devices: int = 1) -> list[Price]:
    """The same for another machine, whose devices each sustain so many FLOPs per second."""
    return [Price(run, run.flops / (flops_per_second * devices)) for run in plan.runs]


def _timed(plan: Plan, name: str, corpus: Corpus, device: str) -> Speed:
    own = sorted((run for run in plan.runs if run.architecture == name), key=lambda run: run.flops / run.tokens)
    places = sorted({round(i * (len(own) - 1) / (TIMED - 1)) for i in range(TIMED)})
    flops: list[float] = []
    seconds: list[float] = []
    for place in places:
        run = own[place]
        each = run.flops / run.tokens
        per_token = seconds[-1] * each / flops[-1] if flops else each / _FIRST_GUESS
        if flops and (per_token * run.recipe.batch * run.recipe.seq_len > LONGEST_STEP or each <= flops[-1]):
            continue
        flops.append(each)
        seconds.append(_token_seconds(run, plan, corpus, device))
    return Speed(flops, seconds)


def _token_seconds(run: PlannedRun, plan: Plan, corpus: Corpus, device: str) -> float:
    """Median over a few training steps, with a smaller batch if a whole one would take too long."""
    import torch

    from plait.scaling.run import job_of
    from plait.training.distributed import Processes
    from plait.training.trainer import Trainer

    most = max(1, int(LONGEST_STEP * _FIRST_GUESS / (run.flops / run.tokens) / run.recipe.seq_len))
    job = job_of(run, plan, corpus, batch=min(run.recipe.batch, most))
    trainer = Trainer(
        job, 10_000, Processes(0, 1, torch.device(device)), activation_checkpointing=False, compiled=False
    )
    took = []
    for _ in range(1 + STEPS):
        begun = time.perf_counter()
        trainer.advance()
        took.append(time.perf_counter() - begun)
    return float(np.median(took[1:]) / job.tokens_per_step)
