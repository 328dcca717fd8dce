"""What `plait search --method gumbel` asks for beyond the other methods: data, a recipe, settings, training anew."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.settings import read_pairs
from plait.training.devices import precision_on

if TYPE_CHECKING:
    from rich.progress import Progress

    from plait.data import Corpus
    from plait.records import Store
    from plait.space.space import Space
    from plait.supernet.job import SupernetJob

GUMBEL = "gumbel"
BATCH, LENGTH = 8, 128  # where no recipe is named: a search on a processor, not a training


@dataclass(frozen=True)
class Asked:
    """The options as they were given."""

    data: str | None
    tokenizer: str | None
    steps: int | None
    seeds: int | None
    recipe: str
    recipe_keys: list[str]
    settings: list[str]
    retrain: int | None

    def corpus(self) -> Corpus | None:
        from plait.data import open_corpus

        return open_corpus(self.data, self.tokenizer) if self.data is not None else None

    def job(self, corpus: Corpus | None, device: str, method: str) -> SupernetJob | None:
        """None where the method trains nothing."""
        from plait.papers.recipes import recipe
        from plait.supernet.job import SupernetJob
        from plait.supernet.settings import PAR, Settings
        from plait.training.recipe import Recipe

        if corpus is None or method != GUMBEL:
            given = {"--steps": self.steps, "--seeds": self.seeds, "--recipe": self.recipe, "--set": self.recipe_keys,
                     "--supernet": self.settings, "--retrain": self.retrain,
                     "--tokenizer": self.tokenizer if corpus is None else None}  # fmt: skip
            if named := [name for name, value in given.items() if value]:
                raise UserError(f"{', '.join(named)}: for --method {GUMBEL}, which needs --data as well.")
            return None
        base = recipe(self.recipe).recipe if self.recipe else Recipe(batch=BATCH, seq_len=LENGTH)
        settings = PAR if self.recipe == "par-search" else Settings()
        if self.steps is not None:
            settings = settings.with_values({"steps": self.steps})
        return SupernetJob(
            corpus,
            base.with_values(read_pairs(self.recipe_keys, "--set", Recipe)),
            settings.with_values(read_pairs(self.settings, "--supernet", Settings)),
            seeds=self.seeds or 1,
            device=device,
            precision=precision_on(device),
        )


def adapted(space: Space, fix: dict[str, str], corpus: Corpus | None) -> Space:
    """The space as far as it was left open, over the data's vocabulary where there are data."""
    declared = space.declared.narrowed(fix)
    if corpus is not None:
        masked = any(header is not None and header.kind == "encoder" for header in space.headers.all)
        declared = declared.with_vocabulary(corpus.vocab + masked)
    return space if declared == space.declared else type(space)(declared)


def retrained(found: dict[str, Any], job: SupernetJob, steps: int, store: Store, runs: Path, bar: Progress) -> None:
    """Train the front's models and those of every seed from scratch; their losses join the document."""
    from plait.studies.retrain import retrain
    from plait.training.fit import Interrupted

    rows = [*found["front"], *(seed for seed in found["seeds"] if seed["spec"])]
    specs = list(dict.fromkeys(row["spec"] for row in rows))
    task = bar.add_task("training from scratch", total=len(specs))
    try:
        losses = retrain(specs, job, steps, store, runs, on_progress=lambda done: bar.update(task, completed=done))
    except Interrupted:
        raise KeyboardInterrupt from None
    for row in rows:
        row["retrained_loss"] = losses[row["spec"]]
    bar.remove_task(task)
