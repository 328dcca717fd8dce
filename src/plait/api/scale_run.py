"""Train a plan's runs, each once: `plait.scale.run`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.api.arguments import opened_store
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.records import Store

if TYPE_CHECKING:
    from plait.scaling.plan import Plan
    from plait.scaling.run import RunOutcome


@dataclass(frozen=True)
class ScalingRuns(Result):
    """What every run of a plan gave. `missing` are those that diverged or that another process trains, with why."""

    outcomes: tuple[RunOutcome, ...] = field(repr=False)
    missing: tuple[str, ...]

    def rows(self) -> list[dict[str, Any]]:
        return [
            {
                "architecture": one.run.architecture,
                "budget": one.run.budget,
                "params": one.run.params,
                "tokens": one.run.tokens,
                "flops": one.run.flops,
                "loss": one.result["loss"] if one.result else None,
                "seconds": one.result["seconds"] if one.result else None,
                "key": one.key,
            }
            for one in self.outcomes
        ]

    def as_dict(self) -> dict[str, Any]:
        return {"runs": self.rows(), "missing": list(self.missing)}


def run(
    plan: str | Path | Plan,
    *,
    device: str = "cpu",
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> ScalingRuns:
    """Train what of a plan (its file, or `plait.scale.plan(…).plan`) is not in the store yet, the cheapest first.

    The same call in several processes, on machines that share the store, shares the work. Interrupted, it resumes.
    """
    from plait.data import open_corpus
    from plait.scaling.plan import read_plan
    from plait.scaling.run import run_plan
    from plait.training.distributed import usable

    usable(device)
    read = read_plan(Path(plan)) if isinstance(plan, (str, Path)) else plan
    corpus = open_corpus(read.data, tokenizer=read.tokenizer)
    with opened_store(store) as opened:
        outcomes = run_plan(
            read, corpus, opened, Path(runs), device=device,
            on_progress=lambda done, total, what: on_progress(what, done, total),
        )  # fmt: skip
    missing = [f"{one.run.spec} at {one.run.budget:.3g} FLOPs: {one.why}" for one in outcomes if one.result is None]
    return ScalingRuns(tuple(outcomes), tuple(missing))
