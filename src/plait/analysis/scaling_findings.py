"""Tests of Findings 5 to 8 of Poli et al. 2024 (MAD, arXiv:2403.17844, section 4) on any runs.

A finding is shown or contradicted if the bootstrap samples say so at the 5 % level: two-sided, as either could have
been the case, and corrected for the number of findings of the fit (Holm), so that the probability of any false one is
at most 5 %. That two numbers are equal cannot be shown: it is contradicted, or consistent with the runs if their
interval is narrow. All others are not distinguishable. Findings for which the runs lack architectures are omitted.

Transformers, hybrids and attention-free models are distinguished by the share of attention among their sequence mixers:
all, some or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from plait.analysis.intervals import holm
from plait.analysis.scaling_frontier import common_budgets
from plait.analysis.scaling_laws import Law, Laws, p_value
from plait.analysis.scaling_surface import Floats, interval
from plait.core.units import percent

SHOWN, CONTRADICTED, CONSISTENT, OPEN = "shown", "contradicted", "consistent", "not distinguishable"
#: Finding 6 is about suboptimal sizes: a quarter of the optimal size, as typical of overtraining in practice.
OFF = 0.25
BEST_SHARE, SHARE_NEAR = 0.25, 0.05
STATE_POWER = -0.28


@dataclass(frozen=True)
class Finding:
    """`probability`: the fraction of bootstrap samples in which it holds; None for a finding that numbers are equal.
    `p`: two-sided, before the correction."""

    number: int
    statement: str
    verdict: str
    probability: float | None
    detail: str
    p: float


def findings(laws: Laws) -> list[Finding]:
    """The findings that the runs can test."""
    shares = {name: laws.runs.mean_of(laws.runs.attention, name) for name in laws.laws}
    whole = [law for name, law in laws.laws.items() if shares[name] == 1]
    hybrids = [law for name, law in laws.laws.items() if 0 < (shares[name] or 0) < 1]
    pairs = [(full, hybrid) for full in whole for hybrid in hybrids]
    tested = [
        *(_allocation(*pair) for pair in pairs),
        *(_gap(*pair) for pair in pairs),
        *_ratio(laws, {name: share for name, share in shares.items() if share is not None}),
        *_state(laws),
    ]
    significant = holm([finding.p for finding in tested])
    return [
        replace(finding, verdict=_verdict(finding, sure)) for finding, sure in zip(tested, significant, strict=True)
    ]


def _verdict(finding: Finding, significant: bool) -> str:
    """`finding.verdict` is that of one that is not significant."""
    if not significant:
        return finding.verdict
    return SHOWN if finding.probability is not None and finding.probability > 0.5 else CONTRADICTED


def _finding(number: int, statement: str, difference_B: Floats, detail: str) -> Finding:
    """One that holds where the difference is above 0."""
    known_B = difference_B[np.isfinite(difference_B)]  # not finite: samples in which a group has no optimum
    chance = float(np.mean(known_B > 0)) if len(known_B) else 0.5
    return Finding(number, statement, OPEN, chance, detail, p_value(known_B))


def _equality(number: int, statement: str, p: float, narrow: bool, detail: str) -> Finding:
    return Finding(number, statement, CONSISTENT if narrow else OPEN, None, detail, p)


def _allocation(full: Law, hybrid: Law) -> Finding:
    """Compare the exponents a; where FLOPs are κ N D, a + b = 1, so one comparison covers both."""
    (a_T, _), (a_H, _) = (law.draws.exponents(law.target, law.cost) for law in (full, hybrid))
    ends = " … ".join(f"{end:+.3f}" for end in interval(a_T - a_H))
    statement = f"the best size grows faster with compute in {full.name} than in {hybrid.name} (a_T > a_H)"
    return _finding(5, statement, a_T - a_H, f"a_T − a_H in {ends}")


def _gap(full: Law, hybrid: Law) -> Finding:
    gap_T, gap_H = (law.draws.gap(law.target, law.cost, OFF) for law in (full, hybrid))
    gaps = " and ".join(f"{law.gap(OFF).value:.4f}" for law in (full, hybrid))
    statement = f"training at a quarter of the best size costs less in {hybrid.name} than in {full.name}"
    return _finding(6, statement, gap_T - gap_H, f"loss above the optimum: {gaps} (Transformer, hybrid)")


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
        share_K = np.array([shares[name] for name in names])
        best_B = share_K[loss_BK.argmin(1)]
        best_quarter_B = loss_BK[:, np.isin(share_K, quarter)].min(1)
        p = _p_best([loss_B - best_quarter_B for loss_B in loss_BK[:, ~np.isin(share_K, quarter)].T])
        chances_text = ", ".join(f"{percent(share)}: {np.mean(best_B == share):.2f}" for share in trained)
        where = "the target" if flops == laws.target else f"{flops:.2g} FLOPs"
        statement = f"a quarter of attention is the best share at {where}"
        chance = float(np.isin(best_B, quarter).mean())
        statements.append(Finding(7, statement, OPEN, chance, f"P(best) by share: {chances_text}", p))
    return statements


def _p_best(ahead: Sequence[Floats]) -> float:
    """That one is the best, from how far it is ahead of each of the others: shown where it is ahead of all of them,
    contradicted where one of them is ahead of it. That it is the best in few samples is no contradiction: of many
    equals each is."""
    tested = [(p_value(ahead_B), float(np.mean(ahead_B > 0)) > 0.5) for ahead_B in ahead]
    behind = [p for p, is_ahead in tested if not is_ahead]
    return min(1.0, len(tested) * min(behind)) if behind else max(p for p, _ in tested)


def _least(law: Law, flops: float) -> Floats:
    return np.asarray(law.draws.optimum(flops, law.cost)[2])


def _state(laws: Laws) -> list[Finding]:
    law = laws.state
    if law is None:
        return []
    low, high = interval(law.shared_B)
    statements = [
        _finding(
            8, "compute-optimal perplexity falls as a power of the state, P* ∝ M^c", -law.shared_B,
            f"c = {law.shared:.3f} ({low:.3f} … {high:.3f})",
        )
    ]  # fmt: skip
    if len(law.c) > 1:
        apart = [c_B - law.shared_B for c_B in law.c_B.values()]
        narrow = max(np.diff(interval(apart_B))[0] for apart_B in apart) <= abs(law.shared)
        exponents = ", ".join(f"{name} {c:.3f}" for name, c in law.c.items())
        p = min(1.0, len(apart) * min(map(p_value, apart)))  # any of them may be the odd one
        statements.append(_equality(8, "c is the same for all architectures", p, narrow, f"each alone: {exponents}"))
    p, narrow = p_value(law.shared_B - STATE_POWER), high - low < abs(STATE_POWER)
    detail = f"c in {low:.3f} … {high:.3f}"
    return [*statements, _equality(8, f"c is {STATE_POWER}, as in the paper", p, narrow, detail)]


__all__ = ["CONSISTENT", "CONTRADICTED", "OPEN", "SHOWN", "Finding", "findings"]
