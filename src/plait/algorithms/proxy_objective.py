"""A zero-cost proxy as an objective: every candidate is built and scored. Tenths of a second each, so not for
millions."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import Batch, Objective
from plait.core.errors import UserError

BEYOND = 1e300


class ProxyObjective(Objective):
    """`tokens` are a stretch of text as ids below the space's vocabulary; all candidates see the same windows of it."""

    maximise: bool = True
    cheap: ClassVar[bool] = False

    def __init__(self, proxy: str, tokens: NDArray[Any], *, batch: int = 8, seq: int = 64, seed: int = 0) -> None:
        from plait.algorithms.proxies import Windows, load_proxy

        self.proxy = load_proxy(proxy)
        self.name, self.seed = proxy, seed
        self.data = Windows(tokens, batch=batch, seq=seq, seed=seed)
        self.largest = int(tokens.max())

    def columns(self, batch: Batch) -> dict[str, NDArray[Any]]:
        scores = [self.score(batch.space.spec(row_G)) for row_G in batch.genes_NG]
        return {self.name: np.array(scores, dtype=np.float64)}

    def as_dict(self) -> dict[str, Any]:
        import hashlib

        data = self.data
        text = hashlib.sha256(np.ascontiguousarray(data.tokens).tobytes()).hexdigest()[:16]
        return {**super().as_dict(), "tokens": text, "batch": data.batch, "seq": data.seq, "seed": self.seed}

    def score(self, spec: str) -> float:
        """JSON has no infinities: such a score is beyond any other. What is not a number stays an error."""
        from plait.model.architecture import architecture
        from plait.model.construct import build

        arch = architecture(spec)
        if self.largest >= arch.header.vocab:
            raise UserError(f"token {self.largest} given, but the space has vocab={arch.header.vocab}.")
        return float(np.clip(self.proxy.score(build(arch, seed=self.seed), self.data), -BEYOND, BEYOND))
