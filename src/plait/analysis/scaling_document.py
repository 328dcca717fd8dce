"""The result of `plait scale fit` as JSON and as text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from plait.analysis.scaling_findings import findings
from plait.analysis.scaling_frontier import NEAR, OFFSETS, chances_of_least
from plait.analysis.scaling_laws import CANNOT_SAY, LEVEL, SHARED_LEVEL, Estimate, Law, Laws, contradiction
from plait.analysis.scaling_runs import ALL, Runs
from plait.analysis.scaling_surface import CONFIDENCE
from plait.core.result import plain
from plait.core.units import percent

FAR = 100.0  # times the largest budget
ODD_COST = 0.1  # relative deviation of FLOPs per token from the fitted cost above which a note is printed
HOPELESS = 100.0  # ratio of the ends of an interval beyond which it is uninformative
ODD_UNITS = 30.0  # factor between FLOPs and 6 N D that suggests wrong units


def number(value: float, digits: int = 4) -> str:
    """Formatted; from ten thousand on with a unit prefix and three digits."""
    if not math.isfinite(value):
        return "∞" if value > 0 else "–"
    if abs(value) >= 1e4:
        for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
            if 1e15 > abs(value) >= size:
                return f"{value / size:.3g}{unit}"
    if 1e3 <= abs(value) < 1e4:
        return f"{value:.0f}"
    return f"{value:.3g}" if abs(value) >= 1e4 or abs(value) < 1e-3 else f"{value:.{digits}g}"


def ends(value: Estimate, digits: int = 4) -> str:
    return f"{number(value.low, digits)} … {number(value.high, digits)}"


def shown(value: Estimate, digits: int = 4, sign: str = "") -> str:
    """A value and its interval: in brackets if the interval is too wide to be useful, in words if uninformative."""
    if value.wide and not 0 < value.high <= HOPELESS * value.low:
        return CANNOT_SAY
    told = f"{sign}{number(value.value, digits)} ({ends(value, digits)})"
    return f"[{told}]" if value.wide else told


def document(laws: Laws) -> dict[str, Any]:
    """The JSON document. `surface` and `frontier` are those of the best architecture at the target."""
    best = laws.best
    document: dict[str, Any] = plain(
        {
            "target": laws.target,
            "confidence": CONFIDENCE,
            "runs": len(laws.runs),
            "unit": laws.runs.unit,
            "noise": {
                "run": laws.draws.noise,
                "group": laws.draws.group_noise,
                "group_p": laws.draws.group_p,
                "trend": laws.draws.trend,
            },
            **({} if len(laws.laws) == 1 else {"architecture": best.name}),
            **_law(best),
            "shared_E": None if laws.shared_p is None else {"shared": laws.shared, "p": laws.shared_p},
            "architectures": {name: _law(law) for name, law in laws.laws.items()},
            "comparisons": [
                {
                    "better": comparison.better,
                    "than": comparison.worse,
                    "probability": comparison.probability,
                    "p": comparison.p,
                    "difference": comparison.difference,
                    "verdict": comparison.verdict,
                }
                for comparison in laws.comparisons
            ],
            "state": best_by_state(laws),
            "attention": best_shares(laws) or None,
            "left_out": laws.left_out,
            "findings": findings(laws),
            "notes": notes(laws),
        }
    )
    return document


def _law(law: Law) -> dict[str, object]:
    return {
        "surface": law.surface_estimates(),
        "frontier": {**law.frontier_estimates(), "extrapolation": law.extrapolation},
        "isoflop": _isoflop(law),
        "flops_per_token": {"kappa": law.cost.kappa, "power": law.cost.power, "root": law.cost.root},
        "off_frontier": [{"size": size, "gap": law.gap(size), "flops": law.overhead(size)} for size in OFFSETS],
    }


def _isoflop(law: Law) -> dict[str, object] | None:
    """None if the runs are not in groups."""
    if not law.groups:
        return None
    groups = []
    for parabola in law.groups:
        group = {"flops": parabola.flops, "runs": len(parabola.runs), "bracketed": parabola.bracketed}
        size = math.exp(parabola.best_n)
        best = {
            "N_star": Estimate.of(size, np.exp(parabola.best_n_B)),
            "D_star": float(law.cost.tokens(np.asarray(parabola.flops), np.asarray(size))),
            "loss": Estimate.of(parabola.best_loss, parabola.best_loss_B),
        }
        groups.append({**group, **best} if parabola.bracketed else group)
    if law.powers is None:
        return {"groups": groups, "a": None, "b": None}
    a, b = (Estimate.of(*pair) for pair in ((law.powers.a, law.powers.a_B), (law.powers.b, law.powers.b_B)))
    return {"groups": groups, "a": a.wider_than(0.2), "b": b.wider_than(0.2)}


@dataclass(frozen=True)
class BestByState:
    """The exponent c of P* ∝ M^c, and the architecture with the lowest perplexity for its state."""

    c: Estimate
    architectures: dict[str, Estimate]  # c of each
    best: str
    probability: float


def best_by_state(laws: Laws) -> BestByState | None:
    law = laws.state
    if law is None:
        return None
    own = {name: Estimate.of(c, law.c_B[name]) for name, c in law.c.items()}
    best = min(law.offset, key=lambda name: law.offset[name])
    return BestByState(Estimate.of(law.shared, law.shared_B), own, best, chances_of_least(law.offset_B)[best])


@dataclass(frozen=True)
class ShareChance:
    attention: float
    architecture: str
    probability: float


@dataclass(frozen=True)
class BestShare:
    """The share of attention that is most probably the best."""

    attention: float
    probability: float
    by_share: list[ShareChance]


def best_shares(laws: Laws) -> dict[str, BestShare]:
    """The best share of attention at the target, compute-optimal and state-optimal (Poli et al. 2024, Finding 7); empty
    if all have the same."""
    runs = laws.runs
    if runs.attention is None:
        return {}
    shares = {name: float(runs.attention[runs.of(name)].mean()) for name in laws.laws}
    if len(set(shares.values())) < 2:
        return {}
    chances = chances_of_least({name: law.loss_at_target()[1] for name, law in laws.laws.items()})
    best = {"compute_optimal": _best_share(shares, chances)}
    if laws.state is not None and len(laws.state.offset_B) == len(laws.laws):
        best["state_optimal"] = _best_share(shares, chances_of_least(laws.state.offset_B))
    return best


def _best_share(shares: dict[str, float], chances: dict[str, float]) -> BestShare:
    best = max(chances, key=lambda name: chances[name])
    return BestShare(shares[best], chances[best], [ShareChance(shares[name], name, chances[name]) for name in shares])


#: The usual symbols of the parameters.
LETTERS = {"alpha": "α", "beta": "β", "N_star": "N*", "D_star": "D*"}


def notes(laws: Laws) -> list[str]:
    """Caveats about the fit, as sentences."""
    least = max(laws.laws.values(), key=lambda law: law.extrapolation)
    same = len({f"{law.extrapolation:.1g}" for law in laws.laws.values()}) == 1
    of = "" if same else f" of {least.name}"
    caveats = list(laws.runs.remarks)
    smallest = float(laws.runs.flops.min())
    if least.extrapolation > NEAR:
        caveats.append(
            f"the target is {least.extrapolation:.3g} times the largest budget trained{of}: an extrapolation"
        )
    elif laws.target < smallest:
        caveats.append(
            f"the target is {laws.target / smallest:.3g} times the smallest budget trained: an extrapolation"
        )
    if least.extrapolation > FAR:
        caveats.append(f"beyond {FAR:g} times: the intervals cover noise, not whether the law holds that far")
    for law in laws.laws.values():
        whose = "" if law.name == ALL else f"{law.name}: "
        wide = [name for name, value in {**law.surface_estimates(), **law.frontier_estimates()}.items() if value.wide]
        if wide:
            letters = ", ".join(LETTERS.get(name, name) for name in wide)
            caveats.append(f"{whose}the data do not determine {letters}; more budgets, further apart, would help")
        outside = [group for group in law.groups if not group.bracketed]
        if outside:
            budgets = ", ".join(f"{group.flops:.3g}" for group in outside)
            caveats.append(f"{whose}no optimum between the sizes trained at {budgets} FLOPs; left out of the parabolas")
        caveats += _alone(laws.runs, law.name, whose)
        if law.few_budgets:
            few = "one budget" if len(law.groups) == 1 else "two budgets"
            caveats.append(
                f"{whose}only {few} with three sizes; the intervals were validated with three or more: train a third"
            )
        if law.cost.spread > ODD_COST:
            caveats.append(
                f"{whose}FLOPs per token differ by up to {percent(law.cost.spread)} from {law.cost}, "
                "which determines N*"
            )
        caveats += _disagreement(law, whose)
    caveats += _units(laws.runs)
    caveats += _left_out(laws)
    bracketed = [law.name for law in laws.laws.values() if sum(group.bracketed for group in law.groups) > 1]
    if laws.runs.state is not None and len(bracketed) > 1 and not laws.state_curves:
        caveats.append(
            f"no state law: {', '.join(bracketed)} have fewer than two budgets in common that have sizes on both sides "
            "of the best"
        )
    if laws.draws.group_noise:
        caveats.append(
            f"whole groups are off the surface by {percent(laws.draws.group_noise, 2)} "
            f"(p = {laws.draws.group_p:.3f}); the intervals include that"
        )
    if laws.draws.trend:
        more = "more" if laws.draws.trend > 0 else "less"
        caveats.append(f"runs scatter {more} the larger their budget; the intervals include that")
    if laws.shared_p is not None and not laws.shared:
        caveats.append(
            f"the architectures do not share one E (p = {laws.shared_p:.2g} < {SHARED_LEVEL}): each has its own. "
            "A text has only one entropy: look for runs that were trained differently"
        )
    return caveats + _batches(laws)


def _alone(runs: Runs, name: str, whose: str) -> list[str]:
    """Notes about runs that are alone at their budget: whether the law of the others predicts each of them."""
    alone = runs.alone(name)
    if not len(alone):
        return []
    budgets = ", ".join(f"{flops:.3g}" for flops in sorted(runs.flops[alone].tolist())[:4])
    told = [f"{whose}only one run at {budgets} FLOPs: used for the surface, not for a parabola"]
    for run in alone.tolist():
        p = contradiction(runs, np.array([run]), np.setdiff1d(runs.of(name), alone))
        if p < LEVEL:
            told.append(
                f"{whose}the single run at {runs.flops[run]:.3g} FLOPs does not fit the law of the others "
                f"(p = {p:.2g}): check it, or leave it out: --where 'flops!={float(runs.flops[run])!r}'"
            )
    return told


def _units(runs: Runs) -> list[str]:
    """A warning if FLOPs are far from 6 N D, which suggests columns in different units."""
    ratio = float(np.median(runs.flops / (6 * runs.params * runs.tokens)))
    if 1 / ODD_UNITS < ratio < ODD_UNITS:
        return []
    return [f"FLOPs are {ratio:.2g} times 6 · params · tokens: check the units of the columns"]


def _left_out(laws: Laws) -> list[str]:
    """The budgets that were excluded from the fit, or contradict it."""
    caveats = []
    for name in dict.fromkeys(budget.architecture for budget in laws.left_out):
        whose = "" if name == ALL else f"{name}: "
        gone = [budget for budget in laws.left_out if budget.architecture == name and budget.left]
        if gone:
            budgets = ", ".join(f"{budget.flops:.3g}" for budget in gone)
            caveats.append(
                f"{whose}runs at {budgets} FLOPs do not follow the law of the larger budgets, or scatter more than "
                f"these (p < {LEVEL}); left out"
            )
        if any(budget.architecture == name and not budget.left for budget in laws.left_out):
            caveats.append(
                f"{whose}the law bends: the smallest budget does not follow the larger ones (p < {LEVEL}), and there "
                "are too few to leave it out. Train larger budgets before you rely on E"
            )
    return caveats


def _disagreement(law: Law, whose: str) -> list[str]:
    """A warning if the parabolas and the surface disagree about the exponent a."""
    if law.powers is None:
        return []
    parabola, surface = Estimate.of(law.powers.a, law.powers.a_B), law.frontier_estimates()["a"]
    if parabola.high >= surface.low and surface.high >= parabola.low:
        return []
    return [
        f"{whose}parabolas give a = {parabola.value:.3f}, the surface {surface.value:.3f}: the sizes are not "
        "centred on the optimum, or groups were trained differently"
    ]


def _batches(laws: Laws) -> list[str]:
    """A warning about batch sizes: the pitfall of Poli et al. 2024, Figure C.1."""
    batch = laws.runs.batch
    if batch is None:
        return []
    growing = []
    for law in laws.laws.values():
        for group in law.groups:
            by_size = batch[group.runs][np.argsort(laws.runs.params[group.runs], kind="stable")]
            if by_size[-1] > 1.01 * by_size[0] and (np.diff(by_size) >= -1e-9).all():
                growing.append(group.flops)
    if not growing:
        return []
    budgets = ", ".join(f"{flops:.3g}" for flops in sorted(set(growing))[:6])
    return [f"the batch grows with the size inside the groups of {budgets} FLOPs, which biases N* downward"]
