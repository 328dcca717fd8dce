"""Tests of Findings 5 to 8 of Poli et al. 2024 (MAD, arXiv:2403.17844, section 4) on any runs.

A finding is shown if it holds in at least 95 % of the bootstrap samples, contradicted if in at most 5 %, and otherwise
not distinguishable. Findings for which the runs lack architectures are omitted. Transformers, hybrids and
attention-free models are distinguished by the share of attention among their sequence mixers: all, some or none.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from plait.analysis.scaling_frontier import common_budgets
from plait.analysis.scaling_laws import SURE, Law, Laws
from plait.analysis.scaling_surface import Floats, interval
from plait.core.units import percent

SHOWN, CONTRADICTED, OPEN = "shown", "contradicted", "not distinguishable"
#: Finding 6 is about suboptimal sizes: a quarter of the optimal size, as typical of overtraining in practice.
OFF = 0.25
BEST_SHARE, SHARE_NEAR = 0.25, 0.05
STATE_POWER = -0.28


@dataclass(frozen=True)
class Finding:
    """`probability`: the fraction of bootstrap samples in which it holds; None if an interval decides."""

    number: int
    statement: str
    verdict: str
    probability: float | None
    detail: str


def findings(laws: Laws) -> list[Finding]:
    """The findings that the runs can test."""
    shares = {name: laws.runs.mean_of(laws.runs.attention, name) for name in laws.laws}
    whole = [law for name, law in laws.laws.items() if shares[name] == 1]
    hybrids = [law for name, law in laws.laws.items() if 0 < (shares[name] or 0) < 1]
    pairs = [(full, hybrid) for full in whole for hybrid in hybrids]
    return [
        *(_allocation(*pair) for pair in pairs),
        *(_gap(*pair) for pair in pairs),
        *_ratio(laws, {name: share for name, share in shares.items() if share is not None}),
        *_state(laws),
    ]


def verdict_of(probability: float) -> str:
    return SHOWN if probability >= SURE else CONTRADICTED if probability <= 1 - SURE else OPEN


def _allocation(full: Law, hybrid: Law) -> Finding:
    """Compare the exponents a; where FLOPs are κ N D, a + b = 1, so one comparison covers both."""
    (a_T, _), (a_H, _) = (law.draws.exponents(law.target, law.cost) for law in (full, hybrid))
    chance = float(np.mean(a_T > a_H))
    ends = " … ".join(f"{end:+.3f}" for end in interval(a_T - a_H))
    statement = f"the best size grows faster with compute in {full.name} than in {hybrid.name} (a_T > a_H)"
    return Finding(5, statement, verdict_of(chance), chance, f"a_T − a_H in {ends}")


def _gap(full: Law, hybrid: Law) -> Finding:
    gap_T, gap_H = (law.draws.gap(law.target, law.cost, OFF) for law in (full, hybrid))
    chance = float(np.mean(gap_H < gap_T))
    gaps = " and ".join(f"{law.gap(OFF).value:.4f}" for law in (full, hybrid))
    statement = f"training at a quarter of the best size costs less in {hybrid.name} than in {full.name}"
    return Finding(6, statement, verdict_of(chance), chance, f"loss above the optimum: {gaps} (Transformer, hybrid)")


def _ratio(laws: Laws, shares: dict[str, float]) -> list[Finding]:
    """Of all trained shares of attention, a quarter has the lowest loss, at every budget and at the target."""
    trained = sorted(set(shares.values()))
    quarter = [share for share in trained if abs(share - BEST_SHARE) <= SHARE_NEAR]
    if len(trained) < 3 or not quarter:
        return []
    names = list(shares)
    statements = []
    for flops in (*common_budgets([laws.laws[name].groups for name in names]), laws.target):
        loss_BK = np.column_stack([_least(laws.laws[name], flops) for name in names])
        best_B = np.array([shares[name] for name in names])[loss_BK.argmin(1)]
        chance = float(np.isin(best_B, quarter).mean())
        chances_text = ", ".join(f"{percent(share)}: {np.mean(best_B == share):.2f}" for share in trained)
        where = "the target" if flops == laws.target else f"{flops:.2g} FLOPs"
        statement = f"a quarter of attention is the best share at {where}"
        statements.append(Finding(7, statement, verdict_of(chance), chance, f"P(best) by share: {chances_text}"))
    return statements


def _least(law: Law, flops: float) -> Floats:
    return np.asarray(law.draws.optimum(flops, law.cost)[2])


def _state(laws: Laws) -> list[Finding]:
    law = laws.state
    if law is None:
        return []
    low, high = interval(law.shared_B)
    there = law.shared_B[np.isfinite(law.shared_B)]  # samples in which every group has an optimum
    falls = float(np.mean(there < 0)) if len(there) else 0.5
    statements = [
        Finding(
            8, "compute-optimal perplexity falls as a power of the state, P* ∝ M^c", verdict_of(falls), falls,
            f"c = {law.shared:.3f} ({low:.3f} … {high:.3f})",
        )
    ]  # fmt: skip
    if len(law.c) > 1:
        apart = {name: interval(c_B - law.shared_B) for name, c_B in law.c_B.items()}
        off = [name for name, (least, most) in apart.items() if least > 0 or most < 0]
        wide = max(most - least for least, most in apart.values()) > abs(law.shared)
        verdict = CONTRADICTED if off else OPEN if wide else SHOWN
        exponents = ", ".join(f"{name} {c:.3f}" for name, c in law.c.items())
        statements.append(Finding(8, "c is the same for all architectures", verdict, None, f"each alone: {exponents}"))
    holds = low <= STATE_POWER <= high
    verdict = CONTRADICTED if not holds else SHOWN if high - low < abs(STATE_POWER) else OPEN
    statements.append(Finding(8, f"c is {STATE_POWER}, as in the paper", verdict, None, f"c in {low:.3f} … {high:.3f}"))
    return statements


__all__ = ["CONTRADICTED", "OPEN", "SHOWN", "Finding", "findings"]
