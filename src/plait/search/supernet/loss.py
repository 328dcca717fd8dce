"""The loss of a path through a trained supernet, as an objective of a search: lower is better, nothing is trained anew.

It ranks what one supernet holds. How good an architecture is by itself, a training from scratch tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plait.search.objectives.objective import Batch, Objective
from plait.search.supernet.likely import Path


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
