"""What the recall tasks share: pairs whose key decides the value, and sequences to be read token by token.

N  sequences      P  pairs of a sequence      M  tokens of a motif      T  tokens of a sequence
"""

from __future__ import annotations

import numpy as np

from plait.tasks.task import IGNORE, Examples, Task


def first_seen(codes_NP: np.ndarray) -> np.ndarray:
    """For each place the first place of its row that holds the same code (itself, if that is the first)."""
    order_NP = np.argsort(codes_NP, axis=1, kind="stable")  # equal codes side by side, the earliest place first
    sorted_NP = np.take_along_axis(codes_NP, order_NP, axis=1)
    places = np.arange(codes_NP.shape[1])
    starts_NP = np.where(np.diff(sorted_NP, axis=1, prepend=sorted_NP[:, :1] - 1) != 0, places, 0)
    leaders_NP = np.take_along_axis(order_NP, np.maximum.accumulate(starts_NP, axis=1), axis=1)
    first_NP = np.empty_like(order_NP)
    np.put_along_axis(first_NP, order_NP, leaders_NP, axis=1)
    return first_NP


def motifs(stream: np.random.Generator, shape: tuple[int, int], vocab: int, longest: int) -> np.ndarray:
    """(N, P, M) tokens below `vocab`, none of them twice in a motif, every such motif equally likely."""
    drawn_NPM = np.empty((*shape, longest), dtype=np.int64)
    for m in range(longest):
        # The r-th of the tokens that are still free: r moves up by one for every taken token at or below it.
        token_NP = stream.integers(vocab - m, size=shape)
        for taken_NP in np.moveaxis(np.sort(drawn_NPM[..., :m], axis=-1), -1, 0):
            token_NP += token_NP >= taken_NP
        drawn_NPM[..., m] = token_NP
    return drawn_NPM


def choose(stream: np.random.Generator, allowed_NP: np.ndarray) -> np.ndarray:
    """In each row one of the allowed places, all of them equally likely: (N, 1)."""
    lots_NP = np.where(allowed_NP, stream.random(allowed_NP.shape, dtype=np.float32), -1.0)
    chosen_N1: np.ndarray = np.argmax(lots_NP, axis=1, keepdims=True)
    return chosen_N1


def autoregressive(task: Task, tokens_NT: np.ndarray, scored_NT: np.ndarray, *, training: bool) -> Examples:
    """Every position is asked for the token after it: in training always, in evaluation where that token is scored.

    "seed" reads the sequence whole and asks nothing of its last token; "mad-lab" leaves the last token out.
    """
    next_NT = np.full(tokens_NT.shape, IGNORE, dtype=task.dtype)
    next_NT[:, :-1] = tokens_NT[:, 1:] if training else np.where(scored_NT[:, 1:], tokens_NT[:, 1:], IGNORE)
    read = slice(None, -1) if task.as_mad_lab else slice(None)
    inputs_NT = tokens_NT.astype(task.dtype)
    return Examples(np.ascontiguousarray(inputs_NT[:, read]), np.ascontiguousarray(next_NT[:, read]))


def take(values_NP: np.ndarray, places_NP: np.ndarray) -> np.ndarray:
    """`values[n, places[n, p]]`."""
    return np.take_along_axis(values_NP, places_NP, axis=1)
