"""The simulation of `benchmarks/intervals.py`, its key cases with fewer repetitions: every interval has its
nominal coverage. Random seeds are fixed."""

from __future__ import annotations

import pytest
from benchmark_modules import load_benchmark

FEW = {  # repetitions, by the beginning of a case's name
    "probe accuracy, 2 seeds, spread of seeds": 600,
    "probe accuracy, 3 seeds, spread of items": 600,
    "probe difference, 2 seeds, spread of seeds": 600,
    "probe mean over 3 tasks, 3 seeds": 400,
    "verdict on the first of 2 equal architectures, 2 seeds": 300,
    "verdict on the best of 5 equal architectures, 3 seeds": 100,
    "compare 3 architectures, 2 seeds, the same batches: all equal": 200,
    "extrapolation slope, 3 sequences": 600,
    "study placement, change of perplexity, 2 seeds": 600,
    "measured latency, median of 5": 600,
    "exponent of 5 lengths, errors ten times too small": 1000,
    "exponent of 9 lengths, errors known": 1000,
    "capability of a pattern not probed, from 8": 200,
    "predicted latency of a layer, from 12 points": 60,
    "predicted latency of a layer, from 40 points": 20,
    "Spearman 0.98, 10 models": 60,
    "Spearman 0.98, ties, 10 models": 60,
    "Spearman 0.9, heavy tails, 50 models": 150,
}


SIMULATION = load_benchmark("intervals")
CASES = {names[0]: (names, kind, once) for names, kind, once, _ in SIMULATION.cases()}


@pytest.mark.parametrize("name", FEW)
def test_coverage(name: str) -> None:
    names, kind, once = CASES[name]
    least, most, _ = SIMULATION.RULES[kind]
    for row in SIMULATION.simulate(names, kind, once, FEW[name], seed=1):
        luck = 3 * max(row["error"], 1e-3)
        assert least - luck <= row["share"] <= most + luck


def test_the_rules_are_said_beforehand() -> None:
    """No case without bounds but those that promise nothing, and every bound can be missed."""
    assert {kind for _, kind, _ in CASES.values()} == set(SIMULATION.RULES)
    bounded = {kind for kind, (least, most, _) in SIMULATION.RULES.items() if (least, most) != (0.0, 1.0)}
    assert bounded == {"coverage", "conservative", "false alarms"}
    narrow = SIMULATION.simulate(("x",), "coverage", lambda rng: rng.random() < 0.9, 2000, seed=0)
    assert not narrow[0]["met"]
