"""The composition of a model: which mixers it has, in which order. Capability is looked up and predicted by it.

Letters: N candidates or architectures, L layers, K kinds of mixer.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.model.architecture import options_of
from plait.space.space import Space
from plait.spec import Layer

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Pattern = tuple[str, ...]
ABSENT = -1


def shortest(names: Sequence[str]) -> Pattern:
    """The shortest pattern that repeats to give these names."""
    n = len(names)
    for period in range(1, n + 1):
        if n % period == 0 and all(names[i] == names[i % period] for i in range(n)):
            return tuple(names[:period])
    return ()


def repeats(kinds_NL: Ints, pattern: Sequence[int]) -> NDArray[np.bool_]:
    """Which candidates are an integer number of repetitions of a pattern."""
    layers_N = (kinds_NL != ABSENT).sum(axis=1)
    tiled_L = np.resize(np.array(pattern, dtype=np.int64), kinds_NL.shape[1])
    same_N = ((kinds_NL == tiled_L) | (kinds_NL == ABSENT)).all(axis=1)
    return np.asarray(same_N & (layers_N > 0) & (layers_N % len(pattern) == 0))


def features(kinds: Sequence[str], kinds_NL: Ints, state_N: Floats) -> Floats:
    """Features of a composition for the regression. Codes beyond `kinds` are channel mixers that were never probed.

    share of each kind       among the sequence mixers, or among the channel mixers
    channel                  share of channel mixers among all mixers
    kv, kv first             whether any mixer, or the first sequence mixer, has a KV cache: attention
    mixed, striped           more than one kind of sequence mixer; share of adjacent sequence mixers that differ
    state                    logarithm of the fixed state per unit of width and layer
    """
    sequence_K = np.array([_kind(name) == "sequence" for name in kinds] + [False])
    grows_K = np.array([_grows(name) for name in kinds] + [False])
    known_NL = np.where(kinds_NL == ABSENT, len(kinds), np.minimum(kinds_NL, len(kinds)))
    present_NL, sequence_NL = kinds_NL != ABSENT, sequence_K[known_NL]
    counts_NK = np.stack([(known_NL == k).sum(axis=1) for k in range(len(kinds))], axis=1).astype(np.float64)
    of_sequence_NK = counts_NK * sequence_K[:-1]
    of_channel_NK = counts_NK - of_sequence_NK
    shares_NK = _share(of_sequence_NK) + _share(of_channel_NK)
    # The sequence mixers alone, moved to the front, so that they are adjacent.
    order_NL = np.argsort(~sequence_NL, axis=1, kind="stable")
    mixers_NL = np.take_along_axis(np.where(sequence_NL, known_NL, len(kinds)), order_NL, axis=1)
    both_NL = mixers_NL[:, 1:] < len(kinds)
    striped_N = ((mixers_NL[:, 1:] != mixers_NL[:, :-1]) & both_NL).sum(axis=1) / np.maximum(1, both_NL.sum(axis=1))
    return np.column_stack(
        [
            shares_NK,
            1 - sequence_NL.sum(axis=1) / np.maximum(1, present_NL.sum(axis=1)),
            grows_K[known_NL].any(axis=1),
            grows_K[mixers_NL[:, 0]],
            (of_sequence_NK > 0).sum(axis=1) > 1,
            striped_N,
            np.log1p(state_N),
        ]
    ).astype(np.float64)


def _share(counts_NK: Floats) -> Floats:
    return np.asarray(counts_NK / np.maximum(1, counts_NK.sum(axis=1, keepdims=True)))


def _kind(name: str) -> str:
    return options_of(Layer(name)).kind


def _grows(name: str) -> bool:
    """Whether it attends to keys and values of all tokens, its own or those of an earlier layer."""
    options = options_of(Layer(name))
    return bool(options.cost(64, 2).kv_cache) or options.reads == "keys"


def _quoted(name: str) -> str:
    """Quoted for a shell: a parallel layer contains bars."""
    text = str(Layer(name))
    return f"'{text}'" if "|" in text else text


def padded(rows: Sequence[Sequence[int]]) -> Ints:
    """Rows of mixer kinds as one array, padded with ABSENT."""
    padded_NL = np.full((len(rows), max(map(len, rows))), ABSENT, dtype=np.int64)
    for at, row in enumerate(rows):
        padded_NL[at, : len(row)] = row
    return padded_NL


def codes_of(space: Space, slot: int, kinds: Sequence[str]) -> Ints:
    """The kind of every option of a slot, ABSENT last; a `UserError` for sequence mixers that were never probed."""
    names = [option.name if option else None for option in space.slots[slot].options]
    if unknown := sorted({name for name in names if name and name not in kinds and _kind(name) == "sequence"}):
        raise UserError(
            f"capability: no probe record has {', '.join(unknown)}, which {space.name} may choose; "
            f"`plait probe {' '.join(_quoted(name) for name in unknown)} --seeds 1` gives them."
        )
    codes = {name: kinds.index(name) if name in kinds else len(kinds) for name in names if name}
    return np.array([codes[name] if name else ABSENT for name in (*names, None)], dtype=np.int64)
