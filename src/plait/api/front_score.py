"""A front scored by proxies, short trainings or a comparison: `plait.front.score`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypedDict

from plait.core.errors import UserError, did_you_mean
from plait.core.progress import OnProgress, ignore
from plait.core.result import Result
from plait.device.quantities import in_rows
from plait.model.architecture import load_mixers
from plait.records import Store
from plait.searching.picking import Row, value_of

COMPARE = "compare"
SHOWN = 16
DATA = "builtin:stdlib"


class Score(TypedDict):
    score: float


class ComparedScore(Score):
    loss: float | None  # None: it diverged
    p_best: float | None  # None: the noise is unknown


@dataclass(frozen=True)
class FrontScores(Result):
    """`models`: best score first; `on_front`: not dominated by another in the score and the search's other
    objectives. By compare the score is minus the validation loss, with `p_best`."""

    ROWS = "models"
    key: str  # of the search
    by: str
    data: str
    models: tuple[Row, ...]

    @property
    def specs(self) -> list[str]:
        return [row["spec"] for row in self.models]


def score(
    key: str = "latest",
    *,
    by: str,
    data: str = DATA,
    tokenizer: str | None = None,
    front: int = SHOWN,
    seed: int = 0,
    time: str | float | None = None,
    mixers: Sequence[str | Path] = (),
    runs: str | Path = "runs",
    store: str | Store | None = None,
    on_progress: OnProgress = ignore,
) -> FrontScores:
    """Score models of a stored search (`front` of them, 0 for all) by something too expensive for the search itself:
    a proxy of `plait list objectives` (snip, grad_norm …), short_training, or compare, which trains them on the text
    for a total `time` (default: "10m")."""
    from plait.api.front import show
    from plait.data import open_corpus
    from plait.records.store import writable_store
    from plait.searching.picking import proxy_scores, still_on_front
    from plait.space.objective_table import PROXIES

    name = by.replace("-", "_")
    if name not in (*PROXIES, COMPARE):
        near = did_you_mean(name, (*PROXIES, COMPARE))
        raise UserError(f"--by {by}: unknown.{near} Known: {', '.join(PROXIES)}, {COMPARE}.")
    if time is not None and name != COMPARE:
        raise UserError(f"--time works only with --by {COMPARE}.")
    load_mixers(mixers)
    with writable_store(store) as opened:
        searched = show(key, front=front, store=opened)
        rows = list(searched.front)
        if name == COMPARE:
            scores: Sequence[Score] = _compared(
                [row["spec"] for row in rows], data, tokenizer, time, runs, opened, on_progress
            )
        else:
            corpus = open_corpus(data, tokenizer)
            values = proxy_scores([row["spec"] for row in rows], name, corpus, seed, opened, on_progress)
            scores = [{"score": value} for value in values]
    objectives = [(objective.rpartition(":")[2], objective.startswith("max")) for objective in searched.objectives]
    kept = still_on_front(rows, [scored["score"] for scored in scores], objectives)
    models = [
        {**scored, "on_front": front_, **_columns(row)} for row, scored, front_ in zip(rows, scores, kept, strict=True)
    ]
    return FrontScores(searched.key, name, data, tuple(sorted(models, key=lambda row: -row["score"])))


def _columns(row: Row) -> Row:
    """A row's columns: size, device quantities, spec."""
    taken = {quantity.column: value_of(row, name) for name, quantity in in_rows([row]).items()}
    return {"decoder_params": row["decoder_params"], **taken, "spec": row["spec"]}


def _compared(
    specs: Sequence[str], data: str, tokenizer: str | None, time: str | float | None, runs: str | Path, store: Store,
    on_progress: OnProgress,
) -> list[ComparedScore]:  # fmt: skip
    """Scores in the order of the specs; a diverged training has the lowest possible score."""
    from plait.api.compare import compare

    if len(specs) < 2:
        raise UserError("a comparison needs two models, but this front has one: give --front 0.")
    comparison = compare(
        list(specs), data=data, tokenizer=tokenizer, time=time, runs=runs, store=store, on_progress=on_progress
    )
    # In the given order, with the vocabulary of the text instead of the space's.
    return [
        {"score": -1e300 if row.loss is None else -row.loss, "loss": row.loss, "p_best": row.p_best}
        for row in comparison.architectures
    ]
