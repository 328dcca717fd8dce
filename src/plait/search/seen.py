"""Which candidates have been met: 64-bit keys of rows, so that ten million fit in memory and are found at once.

Two different candidates share a key with a probability of about 2^-64; such a pair would cost the search one of them.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plait.search.space import Genes

Keys = NDArray[np.uint64]

_FACTORS = np.random.default_rng(0x706C616974).integers(2**63, size=4096, dtype=np.uint64) * 2 + 1


def keys_of(genes_NG: Genes) -> Keys:
    """One key a row: a sum of the genes, each times an odd random number of its place, modulo 2^64."""
    factors_G = np.resize(_FACTORS, genes_NG.shape[1])
    total_N = np.zeros(len(genes_NG), dtype=np.uint64)
    for g, factor in enumerate(factors_G):
        total_N += (genes_NG[:, g].astype(np.uint64) + 1) * factor
    return total_N


class Seen:
    def __init__(self, keys: Keys | None = None) -> None:
        self.keys = np.zeros(0, dtype=np.uint64) if keys is None else keys  # sorted

    def __len__(self) -> int:
        return len(self.keys)

    def new(self, genes_NG: Genes) -> NDArray[np.int64]:
        """The places of rows never met before, each row once, in order."""
        keys_N = keys_of(genes_NG)
        _, first = np.unique(keys_N, return_index=True)
        first.sort()
        wanted = keys_N[first]
        if not len(self.keys):
            return first
        at = np.minimum(np.searchsorted(self.keys, wanted), len(self.keys) - 1)
        return np.asarray(first[self.keys[at] != wanted])

    def add(self, new_NG: Genes) -> None:
        """Rows that `new` gave."""
        both = np.concatenate([self.keys, np.sort(keys_of(new_NG))])
        self.keys = np.sort(both, kind="stable")  # merges the two in one pass
