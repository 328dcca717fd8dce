"""The pool: workers are handed more while they work, and a successor knows all that its predecessor was told."""

from __future__ import annotations

import multiprocessing

from plait.probing.plan import with_seeds
from plait.probing.worker import Event, Setup
from plait.probing.worker_pool import WorkerPool
from plait.records import open_store

from .conftest import tiny, tiny_candidates


def test_more_is_handed_out_as_it_runs_short_even_if_a_worker_dies(store_url, tmp_path):
    protocol = tiny(steps=5)
    trials = with_seeds(tiny_candidates(protocol), protocol, [1, 1], "cpu").trials
    later = [*trials[1:]]  # one at a time
    started: list[int] = []  # how many trials had been handed out, at each request

    def more():
        started.append(len(trials) - len(later))
        if len(started) == 2:
            multiprocessing.active_children()[0].kill()
        return [later.pop(0)] if later else []

    done: list[str] = []

    def listen(event: Event) -> None:
        if event.kind == "done":
            done.append(event.key)

    with open_store(store_url) as store, WorkerPool(Setup(store_url, str(tmp_path), (), 10.0), 2) as pool:
        pool.run(trials[:1], listen, more)
        assert started[:4] == [1, 2, 3, 4], "each is asked for once"
        keys = {trial.key for trial in trials}
        assert store.has(keys) == set(done) == keys
        assert store.kinds() == {"probe": len(trials)}
