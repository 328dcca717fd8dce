"""The pick, trained briefly on real text."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from plait.design.brief import NEARLY, Brief, Told
from plait.errors import UserError
from plait.records import Store

if TYPE_CHECKING:
    from plait.data import Corpus
    from plait.train.job import Budget, Job

HELD_OUT_TOKENS = 2**15  # a quarter of a long training's: evaluating must not take the time from a short one
LEAST_STEPS = 20  # on a machine so slow or busy that the time holds none


def train(brief: Brief, spec: str, corpus: Corpus, store: Store, told: Told) -> dict[str, Any]:
    """The result with its curves. Ctrl-C makes it raise `plait.train.fit.Interrupted`; called again it goes on."""
    from plait.train.fit import Options, Progress, fit
    from plait.train.job import Budget, Job, fitted
    from plait.train.processes import processes
    from plait.train.recipe import Recipe

    def report(now: Progress) -> None:
        words = f"loss {now.loss:.2f} nats a token, {now.tokens_per_second:,.0f} tokens/s"
        told("train", NEARLY * now.step / now.steps, words)

    def job_of(budget: Budget) -> Job:
        return Job(fitted(spec, corpus), corpus, recipe, budget, brief.seed, held_out_tokens=HELD_OUT_TOKENS)

    told("train", None, "measuring speed")
    recipe = Recipe(length=brief.setting.seq)
    with processes(brief.device, "ddp") as among:
        job, started = job_of(Budget(seconds=brief.share("train"))), time.perf_counter()
        try:
            result = fit(job, among, store, Options(brief.runs), report=report, started=started)
        except UserError:  # not one step fits; what else is wrong will be wrong again
            job = job_of(Budget(steps=LEAST_STEPS))
            result = fit(job, among, store, Options(brief.runs), report=report)
    told("train", 1.0, f"{result['loss']:.3f} nats a token held out")
    record = store.get(job.key)
    assert record is not None
    curves = {name: record.result[name] for name in ("curve", "held_out_curve")}
    return {**result, **curves, "recipe": recipe.as_dict(), "seed": brief.seed}
