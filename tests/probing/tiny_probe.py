"""A probe as a program of its own, to be killed: `python tiny_probe.py STORE WORKERS STEPS`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from conftest import tiny, tiny_candidates
from plait.probing.plan import with_seeds
from plait.probing.run import Machine, compare, run_all
from plait.probing.verdict import document
from plait.records import open_store
from plait.workers.pool import Place


def main(url: str, workers: int, steps: int) -> None:
    protocol = tiny(steps)
    work = with_seeds(tiny_candidates(protocol), protocol, [2, 1], "cpu")
    with open_store(url) as store:
        outcome = run_all(work, store, Machine(Place(workers=workers), checkpoint_seconds=0.2), lambda _: None)
    results = {key: record.result for key, record in sorted(outcome.records.items())}
    print(json.dumps({"table": document(compare(outcome)), "results": results, "fresh": outcome.fresh}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
