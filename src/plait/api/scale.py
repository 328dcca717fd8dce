"""Scaling laws with error bars: `plait.scale.plan`, `run`, `fit`, `probe` and `pitfall`. `run` trains each run once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.scale_checks import pitfall, probe
from plait.api.scale_fit import fit
from plait.api.scale_plan import plan
from plait.core.errors import UserError
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.model.architecture import architecture, load_mixers, require_sound
from plait.records import Store
from plait.records.jobs import published
from plait.records.store import opened_store
from plait.workers.pool import Place

if TYPE_CHECKING:
    from plait.scaling.plan import Plan
    from plait.scaling.run import RunOutcome


__all__ = ["fit", "pitfall", "plan", "probe", "run"]


@dataclass(frozen=True)
class ScalingRuns(Result):
    """The results of a plan's runs. `missing`: those that diverged or are being trained elsewhere, with the reason."""

    outcomes: tuple[RunOutcome, ...] = field(repr=False)
    missing: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "architecture": outcome.run.architecture,
                "budget": outcome.run.budget,
                "params": outcome.run.params,
                "tokens": outcome.run.tokens,
                "flops": outcome.run.flops,
                "loss": outcome.result["loss"] if outcome.result else None,
                "seconds": outcome.result["seconds"] if outcome.result else None,
                "key": outcome.key,
            }
            for outcome in self.outcomes
        ]

    def as_dict(self) -> dict[str, Any]:
        return {"runs": self.rows(), "missing": list(self.missing)}


def run(
    plan: str | Path | Plan,
    *,
    device: str = "cpu",
    workers: int | None = None,
    cluster: str = "",
    gpus_per_training: float | None = None,
    log: str | Sequence[str] = (),
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> ScalingRuns:
    """Train the runs of a plan (its file, or `plait.scale.plan(…).plan`) that are not stored yet, cheapest first.

    `workers`: concurrent trainings (default 1; one per GPU); on a `cluster` (ray://HOST:PORT, auto, slurm) as many as
    it has room for, each with `gpus_per_training`. The same call on other machines that use the same store shares the
    work. If interrupted, the same call resumes. `log`: also log for tensorboard, wandb or mlflow.
    """
    from plait.data import open_corpus
    from plait.scaling.plan import read_plan
    from plait.scaling.run import run_plan
    from plait.training.distributed import usable
    from plait.training.sinks import sink_names

    load_mixers(mixers)
    sinks = sink_names(log)
    if not cluster:
        usable(device)
    if workers is not None and workers < 1:
        raise UserError(f"--workers {workers}: must be at least 1.")
    place = Place.of(cluster, workers, device, gpus_per_training, usual=1)
    read = read_plan(Path(plan)) if isinstance(plan, (str, Path)) else plan
    corpus = open_corpus(read.data, tokenizer=read.tokenizer)
    models = [architecture(run.spec) for run in read.runs]
    require_sound(models)
    sources = {source.hash: source for model in models for source in model.mixer_sources.values()}
    names = f"{len(read.runs):,} trainings on {read.data}"
    with opened_store(store) as opened, published(opened, "scale run", names) as job:

        def report(done: float, total: int, what: str) -> None:
            job.update("training", done / total, f"{done:.1f} of {total:,} trainings; {what}")
            on_progress(what, done, total)

        outcomes = run_plan(
            read,
            corpus,
            opened,
            Path(runs),
            place=place,
            mixers=tuple(sources.values()),
            log=sinks,
            on_progress=report,
        )
    missing = [
        f"{outcome.run.spec} at {outcome.run.budget:.3g} FLOPs: {outcome.why}"
        for outcome in outcomes
        if outcome.result is None
    ]
    return ScalingRuns(tuple(outcomes), tuple(missing))
