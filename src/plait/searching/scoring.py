"""The models of a front scored by what is too dear for a search: training-free proxies and short trainings.

A search compares thousands of candidates by what is known at once, the size above all; what it found is few enough to
be built and tried. Each score is a record: asked again, nothing is computed again.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plait.algorithms.proxy_objective import ProxyObjective
from plait.analysis.pareto import pareto_front
from plait.core.progress import OnProgress
from plait.records import Record, Store, provenance_of, record_key
from plait.searching.picking import Row, value_of

if TYPE_CHECKING:
    from plait.data import Corpus

KIND = "score"
TOKENS = 64  # of each sequence that a proxy looks at


def proxy_scores(
    specs: Sequence[str], proxy: str, corpus: Corpus, seed: int, store: Store, told: OnProgress
) -> list[float]:
    """More is better, of every proxy."""
    from plait.model.architecture import architecture

    objective = ProxyObjective(proxy, corpus.tokens("train"), seq=TOKENS, seed=seed)
    found = []
    for done, spec in enumerate(specs):
        told(f"scoring by {proxy}", done, len(specs))
        config: dict[str, Any] = {"protocol": 1, **architecture(spec).identity(), **objective.as_dict()}
        record = store.get(record_key(KIND, config))
        if record is None:
            began = time.time()
            value = objective.score(spec)
            record = Record.of(KIND, config, {"score": value}, provenance_of(began, time.time() - began))
            store.put(record)
        found.append(float(record.result["score"]))
    return found


def still_on_front(rows: Sequence[Row], scores: Sequence[float], objectives: Sequence[tuple[str, bool]]) -> list[bool]:
    """Whether no other has a higher score and is as good in the search's other objectives, the first left out: the
    score is there in its place. `objectives`: names, and whether more is better."""
    others = [(name, more) for name, more in objectives[1:] if all(value_of(row, name) is not None for row in rows)]
    points = [
        [score, *(float(value_of(row, name)) for name, _ in others)] for row, score in zip(rows, scores, strict=True)
    ]
    more = [0, *(at for at, (_, maximise) in enumerate(others, 1) if maximise)]
    return [bool(kept) for kept in pareto_front(points, more)]
