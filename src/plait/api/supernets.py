"""Supernets for `plait.search` with `method="gumbel"`: their options, and retraining of the results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.progress import OnProgress

if TYPE_CHECKING:
    from plait.data import Corpus
    from plait.records import Store
    from plait.supernet.settings import SupernetJob

GUMBEL = "gumbel"
BATCH, SEQ_LEN = 8, 128  # without a recipe: small enough for a search on a CPU


@dataclass(frozen=True)
class Supernets:
    """Options of `method="gumbel"`: `steps` per supernet (None: 2,000), number of `seeds`; `recipe` and `recipe_values`
    as for `plait.train`; `settings` of the supernet; `retrain`: steps to train the results from scratch, with
    `retrain_seeds` seeds each."""

    steps: int | None = None
    seeds: int | None = None
    recipe: str = ""
    recipe_values: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    retrain: int | None = None
    retrain_seeds: int = 1


def supernet_job(
    asked: Supernets, corpus: Corpus | None, device: str, method: str, tokenizer: str | None
) -> SupernetJob | None:
    """The job of a differentiable search; None for other methods."""
    from plait.ops.paths import precision_on
    from plait.papers.recipes import recipe
    from plait.supernet.settings import PAR, Settings, SupernetJob
    from plait.training.recipe import Recipe

    if corpus is None or method != GUMBEL:
        options = {"--steps": asked.steps, "--seeds": asked.seeds, "--recipe": asked.recipe,
                   "--set": asked.recipe_values, "--supernet": asked.settings, "--retrain": asked.retrain,
                   "--retrain-seeds": asked.retrain_seeds > 1,
                   "--tokenizer": tokenizer if corpus is None else None}  # fmt: skip
        if named := [name for name, value in options.items() if value]:
            raise UserError(f"{', '.join(named)}: for --method {GUMBEL}, which needs --data as well.")
        return None
    base = recipe(asked.recipe).recipe if asked.recipe else Recipe(batch=BATCH, seq_len=SEQ_LEN)
    settings = PAR if asked.recipe == "par-search" else Settings()
    if asked.steps is not None:
        settings = settings.with_values({"steps": asked.steps})
    return SupernetJob(
        corpus,
        base.with_values(dict(asked.recipe_values)),
        settings.with_values(dict(asked.settings)),
        seeds=asked.seeds or 1,
        device=device,
        precision=precision_on(device),
    )


def retrain(
    document: dict[str, Any],
    job: SupernetJob,
    steps: int,
    seeds: int,
    store: Store,
    runs: Path,
    on_progress: OnProgress,
) -> None:
    """Train the models of the front and of every seed from scratch, and add their losses to the document."""
    from plait.studies.placement import retrain as train_again

    rows = [*document["front"], *(seed for seed in document["seeds"] if seed["spec"])]
    specs = [row["spec"] for row in rows]
    if not specs:
        return
    trained = train_again(specs, job, steps, store, runs, seeds=seeds, on_progress=on_progress)
    mean = {architecture.name: architecture.loss for architecture in trained.compared.architectures}
    for row in rows:
        row["retrained_loss"] = mean[row["spec"]]
        row["retrained_losses"] = trained.losses[row["spec"]]
    document["retrained"] = {**trained.as_dict(), "statement": trained.statement}
