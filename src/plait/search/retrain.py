"""What found architectures are worth by themselves: each trained from scratch, as `plait train` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from plait.arch import architecture
from plait.records import Store
from plait.search.supernet.job import SupernetJob
from plait.train.fit import Options, Progress, fit
from plait.train.job import Budget, Job
from plait.train.processes import Processes


def retrain(
    specs: Sequence[str],
    supernet: SupernetJob,
    steps: int,
    store: Store,
    runs: Path,
    *,
    seed: int = 0,
    told: Callable[[int, float], object] | None = None,
) -> dict[str, float]:
    """The held-out loss of every spec after `steps` steps on the search's data; each is trained once and kept.

    `told` hears how many are done and how much of the next one is.
    """
    among = Processes(0, 1, torch.device(supernet.device))
    losses: dict[str, float] = {}
    for spec in dict.fromkeys(specs):

        def report(progress: Progress) -> None:
            if told is not None:
                told(len(losses), progress.step / progress.steps)

        job = Job(architecture(spec), supernet.corpus, supernet.recipe, Budget(steps=steps), seed, supernet.precision)
        losses[spec] = float(fit(job, among, store, Options(runs), report=report)["loss"])
        if told is not None:
            told(len(losses), 0.0)
    return losses
