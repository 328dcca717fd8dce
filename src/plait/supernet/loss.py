"""Paths through a table of probabilities, the likeliest first.

The layers are independent, so every path but the first follows from a likelier one by the next likely choice in one
layer. Taking that layer to be the last that is not at its best, each path follows from exactly one other, and a heap of
followers gives all paths in order, as many as are asked for, none twice.

Letters: L layers, K choices of a layer.

The loss of a path through a trained supernet, as an objective of a search: lower is better, nothing is trained again.

It ranks what one supernet holds. How good an architecture is by itself, a training from scratch tells.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import Batch, Objective

Path = tuple[int, ...]


def likeliest(probabilities: Sequence[NDArray[np.float64]]) -> Iterator[tuple[Path, float]]:
    """Paths with their log-probabilities, falling; choices of probability 0 are left out, of equals the first leads."""
    order = [np.argsort(-p, kind="stable")[: int((p > 0).sum())] for p in probabilities]
    logs = [np.log(p[best]) for p, best in zip(probabilities, order, strict=True)]
    waiting = [(-float(sum(log[0] for log in logs)), (0,) * len(logs))]
    while waiting:
        cost, ranks = heapq.heappop(waiting)
        yield tuple(int(best[rank]) for best, rank in zip(order, ranks, strict=True)), -cost
        changed = [layer for layer, rank in enumerate(ranks) if rank]
        for layer in range(changed[-1] if changed else 0, len(ranks)):
            rank = ranks[layer]
            if rank + 1 < len(logs[layer]):
                worse = float(logs[layer][rank] - logs[layer][rank + 1])
                heapq.heappush(waiting, (cost + worse, (*ranks[:layer], rank + 1, *ranks[layer + 1 :])))


class SupernetLoss(Objective):
    name = "loss"
    maximise = False
    unit: ClassVar[str] = "nats"
    cheap: ClassVar[bool] = False

    def __init__(self) -> None:
        #: Which path a candidate was, by its genes: these do not say where in the network its empty layers were.
        self.paths: dict[bytes, Path] = {}
        self.loss_of: Callable[[Path], float] | None = None

    def remember(self, genes_NG: NDArray[Any], paths: Sequence[Path]) -> None:
        for row_G, path in zip(genes_NG, paths, strict=True):
            self.paths.setdefault(row_G.tobytes(), path)

    def columns(self, batch: Batch) -> dict[str, NDArray[np.float64]]:
        found = []
        for row_G in batch.genes_NG:
            assert self.loss_of is not None
            found.append(self.loss_of(self.paths[row_G.tobytes()]))
        return {self.name: np.array(found, dtype=np.float64)}
