"""What scaling laws say, in the terminal."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from plait.cli.output import console, plain, table

if TYPE_CHECKING:
    from plait.analysis.scaling_laws import Estimate, Law, Laws

LETTERS = {"alpha": "α", "beta": "β", "N_star": "N*", "D_star": "D*"}


def print_fit(laws: Laws) -> None:
    """A column per architecture; what is too wide to go by is in brackets."""
    from plait.analysis.scaling_document import attention_document, notes, state_document
    from plait.analysis.scaling_runs import ALL

    out = console()
    runs, best = laws.runs, laws.best
    budgets = f"{runs.flops.min():.3g} to {runs.flops.max():.3g}"
    out.print(f"[bold]{len(runs)} runs[/], {budgets} FLOPs; target {laws.target:.3g} FLOPs; 90 % intervals")
    made = table(**{" ": "left"}, **{"value" if name == ALL else plain(name): "right" for name in laws.laws})
    for name in ("E", "A", "B", "alpha", "beta"):
        made.add_row(LETTERS.get(name, name), *(shown(law.surface_estimates()[name]) for law in laws.laws.values()))
    for name in ("a", "b", "N_star", "D_star", "loss"):
        label = LETTERS.get(name, name) + (" at the target" if name in ("N_star", "D_star", "loss") else "")
        made.add_row(label, *(shown(law.frontier_estimates()[name]) for law in laws.laws.values()))
    for offset in (0.25, 4.0):
        made.add_row(f"loss at {offset:g} N*", *(f"+{shown(law.gap(offset))}" for law in laws.laws.values()))
    made.add_row("FLOPs to make up for N*/4", *(f"×{shown(law.overhead(0.25))}" for law in laws.laws.values()))
    if any(law.powers for law in laws.laws.values()):
        made.add_row("a by parabolas", *(_parabolas(law) for law in laws.laws.values()))
    out.print(made)
    for one in laws.comparisons:
        sure = f"P(better) {one.probability:.2f}, loss lower by {shown(one.difference)}"
        out.print(f"{plain(one.better)} against {plain(one.worse)}: {sure}: [bold]{plain(one.verdict)}[/]")
    if len(laws.laws) > 1:
        out.print(f"best at the target: [bold]{plain(best.name)}[/]; one E for all: {'yes' if laws.shared else 'no'}")
    state = state_document(laws)
    if state is not None:
        low, high = state["c"]["interval"]
        out.print(
            f"state-optimal: P* ∝ M^c, c = {state['c']['value']:.3f} ({low:.3f} … {high:.3f}); least perplexity for "
            f"its state: {plain(state['best'])}, P {state['probability']:.2f}"
        )
    for kind, found in (attention_document(laws) or {}).items():
        words = kind.replace("_", "-")
        out.print(f"{words} share of attention: {found['attention']:.0%}, P {found['probability']:.2f}")
    for note in notes(laws):
        out.print(f"note: {note}", markup=False, soft_wrap=True)


def _parabolas(law: Law) -> str:
    from plait.analysis.scaling_laws import Estimate

    return "–" if law.powers is None else shown(Estimate.of(law.powers.a, law.powers.a_B))


def shown(one: Estimate) -> str:
    """A value and its interval; in brackets where the data cannot say."""
    value, low, high = (number(each) for each in (one.value, one.low, one.high))
    told = f"{value} ({low} … {high})"
    return plain(f"[{told}]") if one.wide else told


def number(value: float) -> str:
    if not math.isfinite(value):
        return "∞" if value > 0 else "–"
    if abs(value) >= 1e4:
        for size, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "K")):
            if 1e15 > abs(value) >= size:
                return f"{value / size:.3g}{unit}"
    return f"{value:.3g}" if abs(value) >= 1e4 or abs(value) < 1e-3 else f"{value:.4g}"
