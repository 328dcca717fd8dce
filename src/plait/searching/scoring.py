"""Scores of built models by workers: what `plait search --cluster` sends to other machines or processes.

A proxy (`short_training`, `snip`, …) builds every candidate and runs it on text, which takes a second or minutes each,
and one candidate needs nothing of another. Each score is a record, so a search that was interrupted, or whose worker
died, scores nothing twice. Everything else stays in the process that searches: exact and predicted objectives take
microseconds, and what is measured (latency, memory, energy) must be measured on the one machine it is for.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from socket import gethostname
from typing import Any

from plait.algorithms.objectives import ProxyObjective
from plait.algorithms.search import Search
from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.records import Record, Store, provenance_of, record_key
from plait.workers.pool import Place, Pool
from plait.workers.task import Setup, Task, Worker

KIND = "score"


@dataclass(frozen=True)
class Scoring:
    """Where candidates are scored, and the text they are scored on, as `plait search --data` names it."""

    place: Place
    data: str
    tokenizer: str | None = None


def score_config(objective: ProxyObjective, spec: str) -> dict[str, Any]:
    """All that decides the score, as JSON."""
    return {"protocol": 1, **architecture(spec).identity(), **objective.as_dict()}


def stored_score(objective: ProxyObjective, spec: str, store: Store) -> float:
    """From the store, or computed here and stored."""
    config = score_config(objective, spec)
    record = store.get(record_key(KIND, config))
    if record is None:
        began = time.time()
        value = objective.score(spec)
        record = Record.of(KIND, config, {"score": value}, provenance_of(began, time.time() - began))
        store.put(record)
    return float(record.result["score"])


@contextmanager
def scored_by_workers(search: Search, scoring: Scoring, store: Store, asked: threading.Event) -> Iterator[None]:
    """Inside, the search's proxies are computed by workers; when `asked` is set, `KeyboardInterrupt` ends it."""
    proxies = [each for each in search.evaluator.objectives if isinstance(each, ProxyObjective)]
    setup = Setup.of(store, tuple(search.space.mixer_sources.values()))
    with Pool(scoring.place, setup, store, local_workers=scoring.place.local_workers(), apart=True) as pool:

        def scores(objective: ProxyObjective, specs: Sequence[str]) -> list[float]:
            keys = {spec: record_key(KIND, score_config(objective, spec)) for spec in specs}
            known = store.has(keys.values())
            given = (objective.name, objective.data.batch, objective.data.seq, objective.seed, objective.fingerprint)
            tasks = [
                Task(key, f"{__name__}:score_in_worker", (spec, scoring.data, scoring.tokenizer, *given), (key,), spec)
                for spec, key in keys.items()
                if key not in known
            ]
            pool.run(tasks, asked=asked)
            return [stored_score(objective, spec, store) for spec in specs]

        for proxy in proxies:
            proxy.score_many = scores
        try:
            yield
        finally:
            for proxy in proxies:
                proxy.score_many = None


def score_in_worker(
    worker: Worker,
    spec: str,
    data: str,
    tokenizer: str | None,
    proxy: str,
    batch: int,
    seq: int,
    seed: int,
    fingerprint: str,
) -> float:
    """In a worker, which keeps the text and the objective for the next candidate."""
    from plait.data import open_corpus

    what = f"score {[data, tokenizer, proxy, batch, seq, seed]}"
    if what not in worker.kept:
        tokens = open_corpus(data, tokenizer).tokens("train")
        worker.kept[what] = ProxyObjective(proxy, tokens, batch=batch, seq=seq, seed=seed)
    objective: ProxyObjective = worker.kept[what]
    if objective.fingerprint != fingerprint:
        raise UserError(
            f"{data} is another text on {gethostname()} than where the search was started: give all machines the same "
            "file."
        )
    return stored_score(objective, spec, worker.store)


def require_proxies(cluster: str, workers: int | None, proxies: Sequence[str]) -> None:
    """Raise a `UserError` where workers are asked for and no objective is theirs to compute."""
    if (cluster or workers) and not proxies:
        option = f"--cluster {cluster}" if cluster else f"--workers {workers}"
        raise UserError(
            f"{option}: workers score built models, and none of the objectives does; such as --objectives "
            "short_training,min:flops --data builtin:stdlib. All others are computed or measured by this process."
        )
