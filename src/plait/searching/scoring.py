"""Computing proxies with workers: `plait search --cluster` and `--workers`.

A proxy (`short_training`, `snip`, …) builds every candidate and runs it on text, which takes from a second to minutes,
independently of all others. Each score is stored as a record, so nothing is computed twice after an interruption or the
death of a worker. Everything else stays in the searching process: exact and predicted objectives take microseconds, and
latency, memory and energy must be measured on the target machine.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from socket import gethostname

from plait.algorithms.objectives import ProxyObjective
from plait.algorithms.search import Search
from plait.core.errors import UserError
from plait.model.architecture import architecture
from plait.records import Store, record_key
from plait.workers.pool import Place, Pool, Setup, Task
from plait.workers.worker import Worker

KIND = "score"


@dataclass(frozen=True)
class Scoring:
    """Where candidates are scored, and the text they are scored on, as given to `plait search --data`."""

    place: Place
    data: str
    tokenizer: str | None = None


def score_config(objective: ProxyObjective, spec: str) -> dict[str, object]:
    """Everything that determines the score, as JSON."""
    return {"protocol": 1, **architecture(spec).identity(), **objective.as_dict()}


def stored_score(objective: ProxyObjective, spec: str, store: Store) -> float:
    """The score from the store, or computed and stored."""
    record = store.computed(KIND, score_config(objective, spec), lambda: {"score": objective.score(spec)})
    return float(record.result["score"])


@contextmanager
def scored_by_workers(search: Search, scoring: Scoring, store: Store, stop: threading.Event) -> Iterator[None]:
    """A context in which workers compute the search's proxies; setting `stop` raises `Stopped`."""
    proxies = [objective for objective in search.evaluator.objectives if isinstance(objective, ProxyObjective)]
    setup = Setup.of(store, tuple(search.space.mixer_sources.values()))
    with Pool(scoring.place, setup, store, local_workers=scoring.place.local_workers(), apart=True) as pool:

        def scores(objective: ProxyObjective, specs: Sequence[str]) -> list[float]:
            keys = {spec: record_key(KIND, score_config(objective, spec)) for spec in specs}
            known = store.has(keys.values())
            proxy = (objective.name, objective.data.batch, objective.data.seq, objective.seed, objective.fingerprint)
            tasks = [
                Task(key, f"{__name__}:score_in_worker", (spec, scoring.data, scoring.tokenizer, *proxy), (key,), spec)
                for spec, key in keys.items()
                if key not in known
            ]
            pool.run(tasks, asked=stop)
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
    """Score one candidate in a worker, which keeps the text and the objective for the next one."""
    from plait.data import open_corpus

    name = f"score {[data, tokenizer, proxy, batch, seq, seed]}"
    if name not in worker.kept:
        tokens = open_corpus(data, tokenizer).tokens("train")
        worker.kept[name] = ProxyObjective(proxy, tokens, batch=batch, seq=seq, seed=seed)
    objective: ProxyObjective = worker.kept[name]
    if objective.fingerprint != fingerprint:
        raise UserError(
            f"{data} on {gethostname()} differs from the text where the search was started: give all machines the same "
            "file."
        )
    return stored_score(objective, spec, worker.store)


def require_proxies(cluster: str, workers: int | None, proxies: Sequence[str]) -> None:
    """Raise a `UserError` if workers are requested but no objective is a proxy."""
    if (cluster or workers) and not proxies:
        option = f"--cluster {cluster}" if cluster else f"--workers {workers}"
        raise UserError(
            f"{option}: workers compute proxies, and none of the objectives is one. For example: --objectives "
            "short_training,min:flops --data builtin:stdlib. All others are computed or measured by this process."
        )
