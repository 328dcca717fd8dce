"""Mechanistic Architecture Design (Poli et al. 2024, arXiv:2403.17844), section 4 and appendix C: its scaling analysis.

Its 500 trainings cannot be repeated here. The checks are that plait plans them as the paper does, and that its analysis
is right about runs simulated from known surfaces: each finding is detected where it holds, and only there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from itertools import pairwise

import numpy as np

from plait.analysis.probe_scale import AGGREGATE, probe_to_scale, sign_test, state_trend
from plait.analysis.scaling_document import best_shares
from plait.analysis.scaling_frontier import Surface
from plait.analysis.scaling_laws import Laws, fit_laws
from plait.analysis.scaling_runs import Runs
from plait.analysis.scaling_simulation import CHINCHILLA, SIX, Design, joined, pitfall, simulated, surface
from plait.core.units import percent
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.papers.mad.scaling_presets import TABLE_C2
from plait.papers.recipes import mad_recipe
from plait.papers.verify import FactTable
from plait.scaling.plan import make_plan
from plait.scaling.sizes import attention_share, family

facts = FactTable()
GROUPS = (4e18, 8e18, 2e19, 4e19, 8e19, 2e20, 5e20, 2e21)
TARGET = 1e22


@facts.fact("M18", "the score rises with the total state; convolution before attention beats the reverse (sign test)")
def state_and_order() -> tuple[str, str, bool]:
    states = [2.0**k for k in range(6, 14)]
    rising, flat = state_trend(states, [0.1 * k**0.5 for k in range(8)]), state_trend(states, [0, 1, 1, 0, 0, 1, 1, 0])
    above, of, p = sign_test([0.02, 0.05, 0.01, 0.03, 0.04, 0.02, 0.01])
    detected = rising.value > 0.99 and rising.interval is not None and rising.interval[0] > 0
    kept = flat.interval is not None and flat.interval[0] < 0 < flat.interval[1]
    _, _, even = sign_test([0.02, -0.05, 0.01, -0.03])
    ours = f"rise detected {detected}, none in noise {kept}; {above} of {of} pairs p {p:.3f}, 2 of 4 p {even:.2f}"
    return "rise detected, none in noise; 7 of 7 pairs p 0.008", ours, detected and kept and p < 0.01 and even > 0.5


@facts.fact("M19", "IsoFLOP planner: 4e18 … 2e21 FLOPs over Table C.2's 35 sizes, batches of Table C.1")
def planner() -> tuple[str, str, bool]:
    sizes = [1e6 * row.params_m for row in TABLE_C2]
    plan = make_plan([family("mad-transformer", 50257)], GROUPS, mad_recipe, data="", seq_len=8192, explicit=sizes)
    good = [run for run in plan.runs if abs(run.flops / run.budget - 1) < 0.05]
    exact = [
        run
        for run in plan.runs
        if abs(3 * model_cost(architecture(run.spec), seq=8192).flops / 8192 * run.tokens / run.flops - 1) < 1e-9
    ]
    used = {run.spec for run in plan.runs}
    ours = f"{len(plan.budgets)} groups, {len(used)} sizes, {len(good)} of {len(plan.runs)} runs at their budget"
    met = len(used) == 35 and len(plan.budgets) == 8 and len(exact) == len(plan.runs)
    # The largest models take too few steps of the smallest budgets to meet them exactly.
    return "8 groups, 35 sizes; FLOPs within 5 %", ours, met and len(good) >= 0.95 * len(plan.runs)


@facts.fact("M20", "a known surface E + A/N^α + B/D^β is recovered, with frontier exponents a and b")
def known_surface() -> tuple[str, str, bool]:
    design = Design(np.logspace(18, 21, 6))
    truth = {"E": 1.817, "A": 482, "B": 2085, "alpha": 0.348, "beta": 0.366, "a": 0.366 / 0.714, "b": 0.348 / 0.714}
    held = exact = 0
    for seed in range(20):
        law = fit_laws(simulated(CHINCHILLA, design, 0.003, np.random.default_rng(seed)), TARGET, draws=200).best
        estimates = {**law.surface_estimates(), **law.frontier_estimates()}
        held += sum(estimates[name].low <= value <= estimates[name].high for name, value in truth.items())
    clean = fit_laws(simulated(CHINCHILLA, design, 0.0, np.random.default_rng(0)), TARGET, draws=20).best
    estimates = {**clean.surface_estimates(), **clean.frontier_estimates()}
    exact = sum(abs(estimates[name].value / value - 1) < 1e-3 for name, value in truth.items())
    a = clean.powers.a if clean.powers else float("nan")
    share = held / (20 * len(truth))
    ours = f"{exact} of 7 without noise; with it {percent(share)} in their 90 % intervals; by parabolas a = {a:.3f}"
    expected = "7 of 7 without noise; with it 90 % in their intervals; a = 0.513"
    return expected, ours, exact == 7 and share >= 0.8 and abs(a - truth["a"]) < 0.01


#: Transformer and striped surfaces as Findings 5 and 6 have them: a larger a, a steeper valley.
TRANSFORMER = surface(1.817, 480.0, 2100.0, 0.340, 0.372)
STRIPED = surface(1.817, 300.0, 1500.0, 0.330, 0.345)


@cache
def _two(same: bool) -> Laws:
    draw, design = np.random.default_rng(1), Design(np.logspace(18, 21, 6))
    parts = [
        simulated(truth, design, 0.002, draw, name=name)
        for name, truth in (("T", TRANSFORMER), ("H", TRANSFORMER if same else STRIPED))
    ]
    return fit_laws(joined(parts), TARGET, draws=300)


def _exponents_apart(laws: Laws) -> float:
    """How often a is larger for the Transformer, over the draws."""
    (t, _), (h, _) = (laws.laws[name].draws.exponents(laws.target, laws.laws[name].cost) for name in "TH")
    return float(np.mean(t > h))


@facts.fact("M21", "Finding 5, a_T > a_H and b_T < b_H: detected in simulated runs where it holds, not in equal ones")
def allocation() -> tuple[str, str, bool]:
    holds, equal = _exponents_apart(_two(False)), _exponents_apart(_two(True))
    return (
        "P ≥ 0.95; equal ones between",
        f"P {holds:.2f}; equal ones {equal:.2f}",
        holds >= 0.95 and 0.02 < equal < 0.98,
    )


@facts.fact("M22", "Finding 6, the optimality gap is smaller in hybrids: gaps of simulated runs match their surfaces")
def gaps() -> tuple[str, str, bool]:
    laws, good = _two(False).laws, 0
    for offset in (0.25, 0.5, 2.0, 4.0):
        for name, truth in (("T", TRANSFORMER), ("H", STRIPED)):
            gap, exact = laws[name].gap(offset), float(truth.gap(TARGET, SIX, offset))
            good += abs(gap.value / exact - 1) < 0.05
    smaller = laws["H"].gap(0.25).high < laws["T"].gap(0.25).low
    return "8 of 8 gaps within 5 %; smaller in hybrids", f"{good} of 8; smaller {smaller}", good == 8 and smaller


@cache
def _ratios() -> Laws:
    """Shares of attention with a compute-optimal best of 25 % and one of 8 % (1A:11H) for the state they hold."""
    draw, design = np.random.default_rng(2), Design(np.logspace(18, 21, 5))
    parts: list[Runs] = []
    for share, extra in ((0.0, 0.6), (1 / 12, 0.03), (0.25, 0.0), (0.5, 0.02), (1.0, 0.045)):
        truth = surface(1.817, 482.0 * (1 + extra), 2085.0 * (1 + extra), 0.348, 0.366)
        runs = simulated(truth, design, 0.001, draw, name=f"{percent(share)} attention")
        # State grows with the size, with as much of it attention's cache as there is attention.
        state = runs.params**0.5 * (1 + 6 * share)
        parts.append(replace(runs, state=state, attention=np.full(len(runs), share)))
    return fit_laws(joined(parts), TARGET, draws=300)


@facts.fact("M23", "Finding 7, the best fraction of attention, and another when state counts: found in simulated runs")
def ratio() -> tuple[str, str, bool]:
    attention = best_shares(_ratios())
    compute, state = attention["compute_optimal"], attention["state_optimal"]
    ours = f"{percent(compute.attention)}, P {compute.probability:.2f}; with state {percent(state.attention)}"
    return "25 %; with state 8 %", ours, compute.attention == 0.25 and abs(state.attention - 1 / 12) < 1e-9


@facts.fact("M24", "Finding 8, P* ∝ M^c with c = −0.28 for all classes and an offset for each: recovered")
def state_law() -> tuple[str, str, bool]:
    draw, design = np.random.default_rng(3), Design(np.logspace(18, 21, 6))
    parts = []
    for name, offset in (("attention", 1.0), ("recurrence", 0.01)):
        runs = simulated(CHINCHILLA, design, 0.0005, draw, name=name)
        best = np.array([float(CHINCHILLA.optimum(flops, SIX)[2]) for flops in design.budgets])
        parts.append(replace(runs, state=1e9 * offset * np.exp(-best / 0.28)[runs.group]))
    law = fit_laws(joined(parts), TARGET, draws=200).state
    if law is None:
        return "c = −0.28", "no law", False
    apart = law.offset["attention"] - law.offset["recurrence"]
    ours = f"c = {law.shared:.3f}; offsets {apart:.2f} apart"
    # At one perplexity a hundred times the state is −c · log 100.
    return "c = −0.280; offsets 1.29 apart", ours, abs(law.shared + 0.28) < 0.01 and abs(apart - 1.29) < 0.05


@facts.fact(
    "M25",
    "Finding 9, probes against loss at scale, aggregate and by task: linear, none for memorization",
)
def probes() -> tuple[str, str, bool]:
    draw, design = np.random.default_rng(4), Design(np.logspace(18, 21, 4), 5)
    qualities = np.linspace(0, 1, 8)
    parts = [
        simulated(surface(1.817, 482 - 80 * q, 2085 - 300 * q, 0.348, 0.366), design, 0.001, draw, name=f"arch {k}")
        for k, q in enumerate(qualities)
    ]
    noise = draw.standard_normal(8)
    scores = {
        f"arch {k}": {"recall": 0.4 + 0.5 * q, "compression": 0.3 + 0.3 * q, "memorization": 0.89 + 0.001 * noise[k]}
        for k, q in enumerate(qualities)
    }
    correlations = probe_to_scale(fit_laws(joined(parts), TARGET, draws=100), scores)
    linear = [correlation for correlation in correlations if correlation.task in (AGGREGATE, "recall")]
    detected = sum(correlation.value < -0.95 and correlation.high < 0 for correlation in linear)
    silent = [correlation for correlation in correlations if correlation.task == "memorization"]
    none = sum(correlation.low <= 0 <= correlation.high for correlation in silent)
    ours = f"linear in {detected} of {len(linear)}, none for memorization in {none} of {len(silent)} budgets"
    return "10 of 10; none in 5 of 5", ours, detected == len(linear) == 10 and none == len(silent) == 5


@facts.fact("M38", "Figure C.1: growing the batch inside one IsoFLOP group biases N* downward; a fixed one does not")
def batches() -> tuple[str, str, bool]:
    best = float(CHINCHILLA.optimum(2e20, SIX)[0])
    curves = pitfall(CHINCHILLA, 2e20, 2**19)
    fixed, growing = float(curves["fixed_best"]) / best, float(curves["growing_best"]) / best
    return "below the fixed batch's", f"N* × {growing:.2f}; fixed × {fixed:.2f}", growing < 0.9 * fixed and fixed > 0.85


@facts.fact("M40", "multi-head Hyena's head dimension: 2 … 64 at one size; the best of simulated runs is found")
def head_dimension() -> tuple[str, str, bool]:
    dims = (2, 4, 8, 16, 32, 64)
    archs = [architecture(f"d=128 vocab=50257 | (mh-hyena[heads={128 // dim}] swiglu)x2") for dim in dims]
    costs = [model_cost(arch, seq=8192) for arch in archs]
    states = [cost.fixed_state for cost in costs]
    # The convolution's FLOPs and the state grow with the head dimension (C.4.3, M10), attention there is none.
    grows = all(a < b for a, b in pairwise(states)) and not any(map(attention_share, archs))
    dearer = all(a.flops < b.flops for a, b in pairwise(costs))
    draw, design = np.random.default_rng(5), Design((1e19, 2e19, 4e19), 5)
    parts = [
        simulated(_worse(abs(np.log2(dim / 8))), design, 0.0005, draw, name=f"head dimension {dim}") for dim in dims
    ]
    best = fit_laws(joined(parts), 2e19, draws=100).best.name
    return (
        "8; state and FLOPs grow",
        f"{best.split()[-1]}; grow {grows and dearer}",
        best.endswith(" 8") and grows and dearer,
    )


def _worse(steps: float) -> Surface:
    return surface(1.817, 482 * (1 + 0.02 * steps), 2085.0, 0.348, 0.366)


@facts.fact(
    "M41", "Figures 4.1, 4.3 and D.3 from results: IsoFLOP curves, N*, D*, compute- and state-optimal frontiers"
)
def figures() -> tuple[str, str, bool]:
    from plait.reporting.scaling import frontier_panels, isoflop_panel, loss_panel, scaling_figure, state_panel

    laws = _ratios()
    panels = [isoflop_panel(laws, law) for law in laws.laws.values()]
    frontiers = frontier_panels(laws)
    state, loss = state_panel(laws), loss_panel(laws)
    drawn = scaling_figure(laws)
    marks = sum(len(series.x) for panel in panels for series in panel.series if series.joined == "none")
    named = sum(words in drawn for words in ("Best size", "Best number of tokens", "State-optimal frontier"))
    ours = f"{marks} of {len(laws.runs)} runs drawn, {named} of 3 frontiers named"
    lines = [series.name for series in loss.series if series.joined == "line"]
    whole = state is not None and lines == list(laws.laws) and len(lines) == 5 and len(frontiers) == 2
    return "175 of 175 runs drawn, 3 of 3", ours, whole and marks == len(laws.runs) and named == 3
