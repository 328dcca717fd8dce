"""Paths through a table of probabilities, the likeliest first.

The layers are independent, so the path after one that was given differs from some earlier one in a single layer, there
by the next likely choice. A heap of those neighbours gives all paths in order, as many as are asked for.

Letters: L layers, K choices of a layer.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Path = tuple[int, ...]


def likeliest(probabilities: Sequence[NDArray[np.float64]]) -> Iterator[tuple[Path, float]]:
    """Paths with their log-probabilities, falling; choices of probability 0 are left out, of equals the first leads."""
    order = [np.argsort(-p, kind="stable")[: int((p > 0).sum())] for p in probabilities]
    logs = [np.log(p[best]) for p, best in zip(probabilities, order, strict=True)]
    first = (0,) * len(logs)
    waiting = [(-float(sum(log[0] for log in logs)), first)]
    met = {first}
    while waiting:
        cost, ranks = heapq.heappop(waiting)
        yield tuple(int(best[rank]) for best, rank in zip(order, ranks, strict=True)), -cost
        for layer, rank in enumerate(ranks):
            if rank + 1 < len(logs[layer]):
                after = (*ranks[:layer], rank + 1, *ranks[layer + 1 :])
                if after not in met:
                    met.add(after)
                    worse = float(logs[layer][rank] - logs[layer][rank + 1])
                    heapq.heappush(waiting, (cost + worse, after))
