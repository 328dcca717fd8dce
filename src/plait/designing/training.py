"""The pick, trained briefly on real text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plait.designing.config import NEARLY, DesignConfig, OnProgress
from plait.records import Store

if TYPE_CHECKING:
    from plait.data import Corpus

VALIDATION_TOKENS = 2**15  # a quarter of a long training's: evaluating must not take the time from a short one
LEAST_STEPS = 20  # on a machine so slow or busy that the time holds none


def train(config: DesignConfig, spec: str, corpus: Corpus, store: Store, on_progress: OnProgress) -> dict[str, Any]:
    """The result with its curves. Ctrl-C makes it raise `plait.training.fit.Interrupted`; called again it resumes."""
    from plait.training.distributed import processes
    from plait.training.fit import Options, Progress, fit
    from plait.training.job import Budget, Job, fitted
    from plait.training.recipe import Recipe
    from plait.training.run import Run, folder_of
    from plait.training.speed import TooShort

    def report(now: Progress) -> None:
        words = f"loss {now.loss:.2f} nats per token, {now.tokens_per_second:,.0f} tokens/s"
        on_progress("train", NEARLY * now.step / now.steps, words)

    on_progress("train", None, "measuring speed")
    recipe, budget = Recipe(seq_len=config.setting.seq), Budget(seconds=config.share("train"))
    job = Job(fitted(spec, corpus), corpus, recipe, budget, config.seed, validation_tokens=VALIDATION_TOKENS)
    with processes(config.device, "ddp") as dist:
        try:
            result = fit(job, dist, store, Options(config.runs), report=report)
        except TooShort:  # the run keeps to these steps, be the machine quicker when it is called again
            run = Run(folder_of(job.key, config.runs))
            run.write_about({**run.about, "steps": LEAST_STEPS})
            result = fit(job, dist, store, Options(config.runs), report=report)
    on_progress("train", 1.0, f"{result['loss']:.3f} nats per token held out")
    record = store.get(job.key)
    assert record is not None
    curves = {name: record.result[name] for name in ("curve", "held_out_curve")}
    return {**result, **curves, "recipe": recipe.as_dict(), "seed": config.seed}
