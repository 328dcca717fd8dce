"""What found architectures are worth by themselves: each trained from scratch, as `plait train` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from plait.model.architecture import architecture
from plait.records import Store
from plait.supernet.job import SupernetJob
from plait.training.fit import fit_alone
from plait.training.job import Budget, Job


def retrain(
    specs: Sequence[str],
    supernet: SupernetJob,
    steps: int,
    store: Store,
    runs: Path,
    *,
    seed: int = 0,
    on_progress: Callable[[float], None] = lambda done: None,
) -> dict[str, float]:
    """The held-out loss of every spec after `steps` steps on the search's data; each is trained once and kept.

    `on_progress` hears how many are done, with the share of the one in training.
    """
    losses: dict[str, float] = {}
    for done, spec in enumerate(dict.fromkeys(specs)):
        job = Job(architecture(spec), supernet.corpus, supernet.recipe, Budget(steps=steps), seed, supernet.precision)

        def part(share: float, done: int = done) -> None:
            on_progress(done + share)

        losses[spec] = float(fit_alone(job, store, runs, device=supernet.device, on_progress=part)["loss"])
    on_progress(len(losses))
    return losses
