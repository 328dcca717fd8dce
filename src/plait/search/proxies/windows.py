"""Batches for proxies: windows of a token stream, the same for every model.

Letters: B batch, T time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plait.core.errors import UserError


class Windows:
    """Step → B windows of T tokens and the tokens after them, a pure function of (seed, step)."""

    def __init__(self, tokens: NDArray[Any], *, batch: int, seq: int, seed: int = 0) -> None:
        if len(tokens) <= seq:
            raise UserError(f"{len(tokens):,} tokens are too few for windows of {seq} and the token after.")
        self.tokens, self.batch, self.seq, self.seed = tokens, batch, seq, seed

    def __call__(self, step: int) -> tuple[Tensor, Tensor]:
        start_B = np.random.default_rng([self.seed, step]).integers(len(self.tokens) - self.seq, size=self.batch)
        window_BT = np.asarray(self.tokens)[start_B[:, None] + np.arange(self.seq + 1)].astype(np.int64)
        return torch.from_numpy(window_BT[:, :-1]), torch.from_numpy(window_BT[:, 1:])
