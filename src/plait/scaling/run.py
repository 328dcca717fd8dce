"""A plan's runs, trained: each once, by `plait train`'s own trainer, with its own record.

Several processes, on one machine or many that share a store, may run one plan: the trainer claims what it trains, and
what another holds is left to it. Interrupted, the same call resumes. A run that diverges is told and the others go on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from plait.analysis.scaling_runs import PER_BYTE
from plait.data import Corpus
from plait.model.architecture import architecture
from plait.records import Record, Store, provenance_of
from plait.records.claims import Busy
from plait.scaling.plan import Plan, PlannedRun, tokens_per_byte

KIND = "scale"
PROTOCOL = 1

#: Called with the runs that are behind us, how many there are, and what is being done.
OnProgress = Callable[[float, int, str], None]


@dataclass(frozen=True)
class RunOutcome:
    """A planned run and what training it gave; None where it diverged or is being trained elsewhere."""

    run: PlannedRun
    key: str
    result: dict[str, Any] | None
    why: str = ""


def job_of(run: PlannedRun, plan: Plan, corpus: Corpus, batch: int | None = None) -> Any:
    from plait.training.job import Budget, Job

    recipe = run.recipe if batch is None else replace(run.recipe, batch=batch)
    validation = min(plan.validation_tokens, len(corpus.tokens("validation")))
    return Job(architecture(run.spec), corpus, recipe, Budget(steps=run.steps), run.seed, plan.precision, validation)


def run_plan(
    plan: Plan,
    corpus: Corpus,
    store: Store,
    runs: Path,
    *,
    device: str = "cpu",
    log: tuple[str, ...] = (),
    on_progress: OnProgress = lambda *_: None,
) -> list[RunOutcome]:
    """Train what is not in the store yet, the cheapest first; then store which runs belong together."""
    started = time.time()
    ordered = sorted(plan.runs, key=lambda run: run.flops)
    outcomes: dict[int, RunOutcome] = {}
    for done, run in enumerate(ordered):
        job = job_of(run, plan, corpus)
        what = f"{run.architecture} {run.params:,} at {run.budget:.3g}"

        def tell(share: float, done: int = done, what: str = what) -> None:
            on_progress(done + share, len(ordered), what)

        tell(0.0)
        outcomes[done] = _trained(run, job, store, runs, device, log, tell)
    on_progress(len(ordered), len(ordered), "done")
    found = list(outcomes.values())
    _remember(plan, corpus, found, store, started)
    return found


def _trained(
    run: PlannedRun,
    job: Any,
    store: Store,
    runs: Path,
    device: str,
    log: tuple[str, ...],
    tell: Callable[[float], None],
) -> RunOutcome:
    from plait.training.fit import fit_alone
    from plait.training.trainer import Diverged

    known = store.get(job.key)  # also where the weights have gone since
    if known is not None:
        return RunOutcome(run, job.key, known.result)
    try:
        return RunOutcome(run, job.key, fit_alone(job, store, runs, device=device, log=log, on_progress=tell))
    except Diverged:
        return RunOutcome(run, job.key, None, "diverged")
    except Busy:
        known = store.get(job.key)
        return RunOutcome(run, job.key, known.result if known else None, "" if known else "another process trains it")


def _remember(plan: Plan, corpus: Corpus, outcomes: list[RunOutcome], store: Store, started: float) -> None:
    """The record that says which trainings are one study, and what each is called there. Only of a whole plan: the
    first writer of a record wins."""
    if any(one.result is None and one.why != "diverged" for one in outcomes):
        return
    rows = [{"key": one.key, "architecture": one.run.architecture, "budget": one.run.budget} for one in outcomes]
    config = {"protocol": PROTOCOL, "data": corpus.as_dict(), "runs": sorted(rows, key=lambda row: str(row["key"]))}
    diverged = [one.key for one in outcomes if one.result is None]
    result = {"diverged": diverged, "text": corpus.name, PER_BYTE: tokens_per_byte(corpus)}
    store.put(Record.of(KIND, config, result, provenance_of(started, time.time() - started)))
