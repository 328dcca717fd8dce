"""State-optimal scaling (Poli et al. 2024, section 4.2): compute-optimal perplexity P* as a power of the state M,
P* = k M^c, one exponent c for all architectures and an offset k for each.

As there, a group's M is the state of the run whose size is nearest the group's best. Which of several architectures is
best when state counts is the one of lowest offset: the least perplexity for the same state.

Draws are of runs around the fitted surface; where the groups' own minima lie off it, they would not hold what was seen.
So half of the draws are around the surface, and half, the same moved, around what was seen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from plait.analysis.scaling_isoflop import Parabola
from plait.analysis.scaling_surface import Floats

Line = tuple[Floats, Floats]  # log M (G), log P* (1 + B, G): what was seen first, then the draws


@dataclass(frozen=True)
class StateLaw:
    """`c` of each architecture alone, `shared` of all with an offset each; draws with them."""

    c: dict[str, float]
    c_B: dict[str, Floats]
    shared: float
    shared_B: Floats
    offset: dict[str, float]  # log k with the shared c
    offset_B: dict[str, Floats]


def line_of(found: Sequence[Parabola], params_R: Floats, state_R: Floats) -> Line | None:
    """Of one architecture's groups whose optimum lies between their sizes; None for fewer than two states."""
    good = [one for one in found if one.bracketed]
    nearest = [one.runs[np.argmin(np.abs(np.log(params_R[one.runs]) - one.best_n))] for one in good]
    m_G = np.log(state_R[nearest]) if nearest else np.empty(0)
    if len(np.unique(m_G)) < 2:
        return None
    return m_G, np.column_stack([np.concatenate([[one.best_loss], one.best_loss_B]) for one in good])


def state_law(lines: Mapping[str, Line]) -> StateLaw | None:
    """Perplexity is e^loss, so log P* is the loss itself."""
    if not lines:
        return None
    lines = {name: (m, _around_both(p)) for name, (m, p) in lines.items()}
    centred = {name: (m - m.mean(), p - p.mean(1, keepdims=True)) for name, (m, p) in lines.items()}
    own = {name: p @ m / (m @ m) for name, (m, p) in centred.items()}
    squares = sum(float(m @ m) for m, _ in centred.values())
    shared_B = np.asarray(sum(p @ m for m, p in centred.values()) / squares)
    offset = {name: p.mean(1) - shared_B * m.mean() for name, (m, p) in lines.items()}
    return StateLaw(
        {name: float(c[0]) for name, c in own.items()},
        {name: c[1:] for name, c in own.items()},
        float(shared_B[0]),
        shared_B[1:],
        {name: float(k[0]) for name, k in offset.items()},
        {name: k[1:] for name, k in offset.items()},
    )


def _around_both(p: Floats) -> Floats:
    """(1 + 2 B, G)."""
    there = np.isfinite(p[1:]).any(axis=0)
    middle = np.where(there, np.nanmedian(np.where(there, p[1:], 0.0), axis=0), np.nan)
    return np.concatenate([p, p[1:] - middle + p[0]])


def chances_of_least(values_B: Mapping[str, Floats]) -> dict[str, float]:
    """How often each is the least over the draws; those in which one does not exist are left out."""
    names = list(values_B)
    table_BK = np.column_stack([values_B[name] for name in names])
    table_BK = table_BK[np.isfinite(table_BK).all(1)]
    if not len(table_BK):
        return dict.fromkeys(names, float("nan"))
    least = table_BK.argmin(1)
    return {name: float(np.mean(least == k)) for k, name in enumerate(names)}
