"""The pick, trained on the user's text for the budget that the race was about."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from plait.designing.config import NEARLY, DesignConfig, OnProgress
from plait.records import Store

if TYPE_CHECKING:
    from plait.data import Corpus
    from plait.training.recipe import Recipe

VALIDATION_TOKENS = 2**15  # a quarter of a long training's: evaluating must not take the time from a short one
LEAST_STEPS = 20  # however short the budget


def train(
    config: DesignConfig,
    spec: str,
    corpus: Corpus,
    recipe: Recipe,
    tokens: float,
    store: Store,
    on_progress: OnProgress,
) -> dict[str, Any]:
    """The result with its curves. Ctrl-C makes it raise `plait.training.fit.Interrupted`; called again it resumes."""
    from plait.training.distributed import processes
    from plait.training.fit import Options, Progress, fit
    from plait.training.job import Budget, Job, fitted

    def report(now: Progress) -> None:
        words = f"loss {now.loss:.2f} nats per token, {now.tokens_per_second:,.0f} tokens/s"
        on_progress("train", NEARLY * now.step / now.steps, words)

    on_progress("train", None, "building the model")
    budget = Budget(tokens=max(tokens, LEAST_STEPS * recipe.batch * recipe.seq_len))
    job = Job(fitted(spec, corpus), corpus, recipe, budget, config.seed, validation_tokens=VALIDATION_TOKENS)
    with processes(config.device, "ddp") as dist:
        result = fit(job, dist, store, Options(config.runs, log=config.log), report=report)
    on_progress("train", 1.0, f"{result['loss']:.3f} nats per token held out")
    record = store.get(job.key)
    assert record is not None
    curves = {name: record.result[name] for name in ("curve", "held_out_curve")}
    return {**result, **curves, "recipe": recipe.as_dict(), "seed": config.seed}
