"""Scaling laws in the terminal."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import TYPE_CHECKING

from plait.cli.output import console, paragraph, plain, table
from plait.core.units import duration, percent

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rich.table import Table

    from plait.analysis.scaling_laws import Estimate, Law, Laws
    from plait.api.scale import ScalingPlan, ScalingRuns
    from plait.api.scale_fit import Pitfall, ProbeScale


def print_fit(laws: Laws, *, plot: bool = False) -> None:
    """A column per architecture; estimates too uncertain to be useful are in brackets."""
    from plait.analysis.scaling_document import best_by_state, best_shares, notes
    from plait.analysis.scaling_findings import findings
    from plait.analysis.scaling_laws import CANNOT_SAY

    out = console()
    runs, best = laws.runs, laws.best
    per_byte = "; losses in nats per byte, D in bytes" if runs.unit == "byte" else ""
    budgets = f"{runs.flops.min():.3g} to {runs.flops.max():.3g}"
    out.print(f"[bold]{len(runs)} runs[/], {budgets} FLOPs; target {laws.target:.3g} FLOPs; 90 % intervals{per_byte}")
    for grid in law_tables(laws, out.width):
        out.print(grid)
    if plot:
        for law in laws.laws.values():
            out.print(isoflop_plot(laws, law), markup=False)
    for comparison in laws.comparisons:
        sure = f"P(better) {comparison.probability:.2f}, loss lower by {shown(comparison.difference)}"
        pair = f"{plain(comparison.better)} against {plain(comparison.worse)}"
        out.print(f"{pair}: {sure}: [bold]{plain(comparison.verdict)}[/]")
    if len(laws.laws) > 1:
        ahead = [c.worse for c in laws.comparisons if c.better == best.name and c.verdict == CANNOT_SAY]
        unsure = f" ({CANNOT_SAY} whether it beats {plain(', '.join(ahead))})" if ahead else ""
        said = f"{'lowest' if ahead else 'best'} at the target: [bold]{plain(best.name)}[/]{unsure}"
        out.print(f"{said}; one E for all: {'yes' if laws.shared else 'no'}")
    state = best_by_state(laws)
    if state is not None:
        least = f"; least perplexity for its state: {plain(state.best)}, P {state.probability:.2f}"
        alone = len(state.architectures) == 1
        power = f"P* ∝ M^c, c = {state.c.value:.3f} ({state.c.low:.3f} … {state.c.high:.3f})"
        out.print(f"state-optimal: {power}{'' if alone else least}")
    for kind, share in best_shares(laws).items():
        words = kind.replace("_", "-")
        out.print(f"{words} share of attention: {percent(share.attention)}, P {share.probability:.2f}")
    found_here = findings(laws)
    if found_here:
        grid = table(MAD="left", finding="left", verdict="left", P="right")
        for finding in found_here:
            chance = "" if finding.probability is None else f"{finding.probability:.2f}"
            grid.add_row(str(finding.number), plain(f"{finding.statement}; {finding.detail}"), finding.verdict, chance)
        out.print(grid)
    for note in notes(laws):
        paragraph(out, f"note: {note}")


def law_tables(laws: Laws, width: int) -> list[Table]:
    """A column per architecture, in as many tables as needed so that no cell wraps."""
    from plait.analysis.scaling_runs import ALL

    columns = [_law_column(law) for law in laws.laws.values()]
    if not any(law.powers for law in laws.laws.values()):
        columns = [{name: cell for name, cell in column.items() if name != PARABOLAS} for column in columns]
    names = ["value" if name == ALL else name for name in laws.laws]
    gap = 2
    labels = max(map(len, columns[0])) + gap
    widest = max(len(cell) for name, column in zip(names, columns, strict=True) for cell in (name, *column.values()))
    beside = max(1, (width - labels) // (widest + gap))
    tables = []
    for first in range(0, len(names), beside):
        part = slice(first, first + beside)
        grid = table(**{" ": "left"}, **{plain(name): "right" for name in names[part]})
        for label in columns[0]:
            grid.add_row(label, *(plain(column[label]) for column in columns[part]))
        tables.append(grid)
    return tables


PARABOLAS = "a by parabolas"


def _law_column(law: Law) -> dict[str, str]:
    from plait.analysis.scaling_document import LETTERS, shown

    told = {LETTERS.get(name, name): shown(estimate) for name, estimate in law.surface_estimates().items()}
    for name, estimate in law.frontier_estimates().items():
        at = " at the target" if name in ("N_star", "D_star", "loss") else ""
        told[LETTERS.get(name, name) + at] = shown(estimate)
    for offset in (0.25, 4.0):
        told[f"loss at {offset:g} N*"] = shown(law.gap(offset), sign="+")
    more = law.overhead(0.25)
    told["FLOPs to make up for N*/4"] = "none are enough" if math.isinf(more.low) else shown(more, sign="×")
    told[PARABOLAS] = _parabolas(law)
    return told


def isoflop_plot(laws: Laws, law: Law) -> str:
    """Loss over size in characters: a digit is a run of that group, smallest budget first, * a group's best."""
    from plait.cli.output import character_plot

    groups = [(laws.runs.params[group.runs], laws.runs.loss[group.runs]) for group in law.groups]
    marks = [
        (float(n), float(loss), str((g + 1) % 10))
        for g, (params, losses) in enumerate(groups)
        for n, loss in zip(params, losses, strict=True)
    ]
    marks += [(math.exp(group.best_n), group.best_loss, "*") for group in law.groups if group.bracketed]
    named = ", ".join(f"{g + 1}: {group.flops:.3g}" for g, group in enumerate(law.groups))
    return f"{law.name}, FLOPs {named}\n" + character_plot(marks, "parameters", "loss")


def print_probe(result: ProbeScale) -> None:
    out = console()
    grid = table(task="left", FLOPs="right", r="right", interval="right", verdict="left")
    for row in result.rows():
        low, high = row["interval"]
        interval = f"{low:.2f} … {high:.2f}" if math.isfinite(low) else "–"
        value = f"{row['r']:.2f}" if math.isfinite(row["r"]) else "–"
        grid.add_row(row["task"], f"{row['budget']:.3g}", value, interval, row["verdict"])
    out.print(grid)
    for note in result.notes:
        paragraph(out, note)


def print_pitfall(result: Pitfall) -> None:
    out = console()
    out.print(
        f"true N* {number(result.best)}; fixed batch {number(result.fixed)}; growing batch {number(result.growing)}"
    )
    marks = [(row["params"], row["fixed_loss"], "o") for row in result.rows()]
    marks += [(row["params"], row["growing_loss"], "x") for row in result.rows()]
    from plait.cli.output import character_plot

    out.print(character_plot(marks, "parameters", "loss; o fixed batch, x growing"), markup=False)


def print_plan(result: ScalingPlan, out_file: Path | None, mixers: Sequence[str] = ()) -> None:
    """A row per architecture and group."""
    out, plan = console(), result.plan
    seconds = {id(price.run): price.seconds for price in result.prices}
    grid = table(
        architecture="left", FLOPs="right", runs="right", params="right", tokens="right", steps="right", batch="right",
        lr="right", time="right",
    )  # fmt: skip
    for name, flops in dict.fromkeys((run.architecture, run.budget) for run in plan.runs):
        own = [run for run in plan.runs if (run.architecture, run.budget) == (name, flops)]
        took = duration(sum(seconds[id(run)] for run in own)) if seconds else ""
        lowest, highest = own[0], own[-1]
        grid.add_row(
            plain(name), f"{flops:.3g}", str(len(own)), *_from_to(lowest.params, highest.params),
            *_from_to(lowest.tokens, highest.tokens), *_from_to(lowest.steps, highest.steps),
            *_from_to(lowest.recipe.batch, highest.recipe.batch), *_from_to(lowest.recipe.lr, highest.recipe.lr), took,
        )  # fmt: skip
    out.print(grid)
    whole = "" if result.seconds is None else f", about {duration(result.seconds)} sequentially"
    out.print(f"[bold]{len(plan.runs)} runs[/] on {plain(plan.data)}, {plan.flops:.3g} FLOPs{whole}")
    if result.tokens_per_byte is not None and result.tokens_per_byte != 1:
        out.print(f"{result.tokens_per_byte:.4f} tokens per byte: compare losses with other tokenizers per byte")
    for warning in result.warnings:
        paragraph(out, f"warning: {warning}")
    if out_file is not None:
        command = f"plait scale run {out_file}{_with(mixers)}"
        out.print(f"train it with `{command}`", markup=False, soft_wrap=True)


def _with(mixers: Sequence[str]) -> str:
    return "".join(f" --mixers {shlex.quote(str(file))}" for file in mixers)


def _from_to(low: float, high: float) -> tuple[str]:
    return (number(low) if low == high else f"{number(low)} … {number(high)}",)


def print_runs(result: ScalingRuns, store: str | None = None) -> None:
    """`store`: its URL, if the user gave one."""
    out = console()
    grid = table(architecture="left", FLOPs="right", params="right", tokens="right", loss="right", time="right")
    for row in result.rows():
        loss = "–" if row["loss"] is None else f"{row['loss']:.4f}"
        took = "" if row["seconds"] is None else duration(row["seconds"])
        sizes = (number(row["params"]), number(row["tokens"]))
        grid.add_row(plain(row["architecture"]), f"{row['budget']:.3g}", *sizes, loss, took)
    out.print(grid)
    for missing in result.missing:
        out.print(f"missing: {missing}", markup=False, soft_wrap=True)
    for note in result.notes:
        paragraph(out, f"note: {note}")
    named = "" if store is None else f" {shlex.quote(store)}" if store.startswith("sqlite:") else " STORE_URL"
    out.print(f"`plait scale fit{named} --target FLOPS` reads them from the store.", markup=False, soft_wrap=True)


def _parabolas(law: Law) -> str:
    from plait.analysis.scaling_document import shown
    from plait.analysis.scaling_laws import Estimate

    return "–" if law.powers is None else shown(Estimate.of(law.powers.a, law.powers.a_B).wider_than(0.2))


def shown(estimate: Estimate) -> str:
    from plait.analysis.scaling_document import shown as words

    return plain(words(estimate))


def number(value: float) -> str:
    from plait.analysis.scaling_document import number as words

    return words(value)
