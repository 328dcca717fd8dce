"""How often do the 90 % intervals of `plait scale fit` hold the truth?

    python benchmarks/scaling.py [--only WORD] [--repetitions 200] [--seed 0] [--out FILE.json]

Runs are drawn from a known surface with noise, for 3 to 9 budgets, and fitted as the command does. Some cases have a
surface of its own for every repetition: entropies from 0.8 to 2.2, exponents from 0.25 to 0.5, 1 to 40 tokens per
parameter at the best size, noise from 0.2 to 1 %. The correction of the bootstrap (`scaling_bootstrap`) was chosen with
seed 0 on the other cases; another seed and these surfaces are what it was not chosen on. Held are E, α, β, a,
b and N* at a target ten times above the largest budget; the bounds are 85 to 95 of 100. The other cases are harder:
heavy tails, noise that a whole group shares, costs that are no 6 N D, several architectures with one E. The table goes
beside the JSON as .md. Some minutes on one core.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
import scipy

from plait.analysis.scaling_bootstrap import DRAWS
from plait.analysis.scaling_frontier import Surface, TokenCost
from plait.analysis.scaling_laws import Law, Laws, fit_laws
from plait.analysis.scaling_runs import Runs
from plait.analysis.scaling_simulation import CHINCHILLA, SIX, Design, joined, simulated, surface

Once = Callable[[np.random.Generator], tuple[Runs, float, Surface]]
QUANTITIES = ("E", "alpha", "beta", "a", "b", "N_star")
BOUNDS = {"promised": (0.85, 0.95), "harder": (0.80, 1.0)}
#: A text of small entropy that small models learn fast, far from Chinchilla's.
STEEP = surface(0.9, 60.0, 400.0, 0.45, 0.40)
COSTLY = TokenCost(40.0, 0.9, 0.0)  # attention and embeddings weigh on small models


def cases() -> Iterator[tuple[str, str, TokenCost, Once]]:
    """Name, kind, FLOPs of a token, and one repetition: runs, the target and the truth."""
    for budgets in range(3, 10):
        yield f"{budgets} budgets", "promised", SIX, _plain(CHINCHILLA, budgets, 0.005)
    for budgets in range(3, 10):
        yield f"{budgets} budgets, own surfaces", "promised", SIX, _own(budgets)
    for budgets in (3, 6):
        yield f"{budgets} budgets, steep, noise 1 %", "promised", SIX, _plain(STEEP, budgets, 0.01, lowest=12)
    yield "5 budgets, 40 N^0.9 per token", "promised", COSTLY, _plain(CHINCHILLA, 5, 0.005, COSTLY)
    yield "5 budgets, 5 sizes from N*/8 to 2 N*", "promised", SIX, _uneven
    yield "6 budgets, t noise with 3 degrees of freedom", "harder", SIX, _heavy
    yield "6 budgets, groups share noise", "harder", SIX, _plain(CHINCHILLA, 6, 0.003, group_noise=0.004)
    yield "4 budgets, three architectures, one E", "promised", SIX, _three


def _plain(
    truth: Surface, budgets: int, noise: float, cost: TokenCost = SIX, group_noise: float = 0.0, lowest: int = 18
) -> Once:
    def once(rng: np.random.Generator) -> tuple[Runs, float, Surface]:
        design = Design(np.logspace(lowest, lowest + 3, budgets))
        return simulated(truth, design, noise, rng, cost=cost, group_noise=group_noise), 10.0 ** (lowest + 4), truth

    return once


def _own(budgets: int) -> Once:
    def once(rng: np.random.Generator) -> tuple[Runs, float, Surface]:
        E, alpha, beta = rng.uniform(0.8, 2.2), *rng.uniform(0.25, 0.5, 2)
        # At 1e20 FLOPs the best size reads so many tokens for each parameter and its size costs so much loss.
        ratio, size_loss = np.exp(rng.uniform(0, np.log(40))), rng.uniform(0.1, 0.5)
        params = (1e20 / 6 / ratio) ** 0.5
        A = size_loss * params**alpha
        B = alpha * size_loss / beta * (ratio * params) ** beta  # where the slopes of both terms are equal
        truth = surface(E, A, B, alpha, beta)
        noise = np.exp(rng.uniform(np.log(0.002), np.log(0.01)))
        return simulated(truth, Design(np.logspace(18, 21, budgets)), noise, rng), 1e22, truth

    return once


def _uneven(rng: np.random.Generator) -> tuple[Runs, float, Surface]:
    return simulated(CHINCHILLA, Design(np.logspace(18, 21, 5), 5, 1 / 8, 2), 0.005, rng), 1e22, CHINCHILLA


def _heavy(rng: np.random.Generator) -> tuple[Runs, float, Surface]:
    runs = simulated(CHINCHILLA, Design(np.logspace(18, 21, 6)), 0.0, rng)
    return replace(runs, loss=runs.loss * np.exp(0.003 * rng.standard_t(3, len(runs)))), 1e22, CHINCHILLA


def _three(rng: np.random.Generator) -> tuple[Runs, float, Surface]:
    """The last one is held: its E comes from all."""
    truths = [surface(1.817, 400.0, 2300.0, 0.35, 0.37), surface(1.817, 520.0, 1900.0, 0.345, 0.36), CHINCHILLA]
    design = Design(np.logspace(18, 21, 4))
    parts = [simulated(truth, design, 0.005, rng, name=f"arch {k}") for k, truth in enumerate(truths)]
    return joined(parts), 1e22, CHINCHILLA


def true_values(truth: Surface, cost: TokenCost, target: float) -> dict[str, float]:
    a, b = truth.exponents(cost)
    values = (truth.E, truth.alpha, truth.beta, a, b, truth.optimum(target, cost)[0])
    return {name: float(value) for name, value in zip(QUANTITIES, values, strict=True)}


def estimates(laws: Laws) -> dict[str, Any]:
    law: Law = list(laws.laws.values())[-1]
    return {**law.surface_estimates(), **law.frontier_estimates()}


def simulate(
    name: str, kind: str, cost: TokenCost, once: Once, repetitions: int, seed: int = 0, draws: int = DRAWS
) -> list[dict[str, Any]]:
    rng = np.random.default_rng([seed, crc32(name.encode())])
    held = dict.fromkeys(QUANTITIES, 0)
    widths: dict[str, list[float]] = {quantity: [] for quantity in QUANTITIES}
    for number in range(repetitions):
        runs, target, truth = once(rng)
        found = estimates(fit_laws(runs, target, seed=number, draws=draws))
        wanted = true_values(truth, cost, target)
        for quantity in QUANTITIES:
            one = found[quantity]
            held[quantity] += one.low <= wanted[quantity] <= one.high
            widths[quantity].append((one.high - one.low) / abs(wanted[quantity]))
    least, most = BOUNDS[kind]
    rows = []
    for quantity in QUANTITIES:
        share = held[quantity] / repetitions
        rows.append(
            {
                "case": name,
                "kind": kind,
                "quantity": quantity,
                "repetitions": repetitions,
                "share": share,
                "width": float(np.median(widths[quantity])),
                "met": least <= share <= most,
            }
        )
    return rows


def table(found: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    rows = found["rows"]
    lines = [
        "# How often the intervals of `plait scale fit` hold the truth",
        "",
        f"`python benchmarks/scaling.py`, {found['date']}, {versions}, seed {found['seed']}, {found['draws']} draws: "
        f"{found['seconds']:.0f} s, "
        f"{len(rows)} shares, {sum(not row['met'] for row in rows)} outside of their bounds. Of "
        f"{found['repetitions']} repetitions each, a share near 90 % has a standard error of "
        f"{100 * (0.09 / found['repetitions']) ** 0.5:.1f}.",
        "",
        "Groups from 1e18 to 1e21 FLOPs of 7 sizes from N*/6 to 6 N* unless the case says otherwise, noise of log L "
        "0.5 %, target 1e22. Promised are 85 to 95 %; of the harder cases 80 % or more. In brackets the median width "
        "of the interval, of the true value.",
        "",
        "| case | kind | " + " | ".join(QUANTITIES) + " |",
        "|---|---|" + "---:|" * len(QUANTITIES),
    ]
    for case in dict.fromkeys(row["case"] for row in rows):
        own = {row["quantity"]: row for row in rows if row["case"] == case}
        cells = [
            f"{100 * own[q]['share']:.1f}{'' if own[q]['met'] else ' **outside**'} ({100 * own[q]['width']:.1f} %)"
            for q in QUANTITIES
        ]
        lines.append(f"| {case} | {own['E']['kind']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="cases whose name holds this")
    parser.add_argument("--repetitions", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--draws", type=int, default=DRAWS, help="of each bootstrap")
    parser.add_argument("--out", type=Path, help="a JSON file; the table goes beside it")
    given = parser.parse_args()
    begun = time.perf_counter()
    rows: list[dict[str, Any]] = []
    for name, kind, cost, once in cases():
        if given.only in name:
            rows += simulate(name, kind, cost, once, given.repetitions, given.seed, given.draws)
            shares = "  ".join(f"{row['quantity']} {100 * row['share']:.1f}" for row in rows[-len(QUANTITIES) :])
            met = "" if all(row["met"] for row in rows[-len(QUANTITIES) :]) else "OUTSIDE"
            print(f"{name:46s} {shares} {time.perf_counter() - begun:6.1f} s {met}", flush=True)
    found = {
        "date": date.today().isoformat(),
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "scipy": scipy.__version__},
        "seed": given.seed,
        "repetitions": given.repetitions,
        "draws": given.draws,
        "seconds": round(time.perf_counter() - begun, 1),
        "rows": rows,
    }
    if given.out:
        given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        given.out.with_suffix(".md").write_text(table(found), encoding="utf-8")
    raise SystemExit(int(not all(row["met"] for row in rows)))


if __name__ == "__main__":
    main()
