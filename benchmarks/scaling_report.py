"""Forecasts of scaling runs before they are trained, and the page of their results.

    python benchmarks/scaling_report.py predict benchmarks/results/DATE-scaling.csv -o FILE.md [--target 1e16]
    python benchmarks/scaling_report.py report benchmarks/results/DATE-scaling.csv -o FILE.md [--target 1e16]

The rows are those of `scaling_runs.py`. `report` writes the tables of a page, each between `<!-- begin NAME -->` and
`<!-- end NAME -->`; the rest of the page is written by hand and not changed.
"""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from scaling_runs import ARCHITECTURES, PASSED, SEQ_LEN, Row, jobs, read_rows

PART = re.compile(r"<!-- begin (?P<name>[\w-]+) -->\n.*?<!-- end (?P=name) -->", re.DOTALL)
FRONTIER = (1e14, 1e15, 1e16, 1e17)  # FLOPs


@dataclass(frozen=True)
class Forecast:
    """The loss of one run by the law of smaller budgets: the law's 90 % interval, and that of a single run, which has
    the noise of runs about the law as well."""

    loss: float
    law: tuple[float, float]
    run: tuple[float, float]


def forecast(laws: Any, name: str, params: float, tokens: float) -> Forecast:
    from plait.analysis.scaling_surface import interval

    law, rng = laws.laws[name], np.random.default_rng(0)
    drawn = law.draws.loss(np.asarray(params), np.asarray(tokens))
    noise = float(np.hypot(laws.draws.noise, laws.draws.group_noise))
    once = drawn * np.exp(noise * rng.standard_normal(len(drawn)))
    return Forecast(float(law.surface.loss(params, tokens)), interval(drawn), interval(once))


def predict(options: argparse.Namespace) -> None:
    """What runs at the target will give, by the laws of the budgets in the file: written before they are trained."""
    import plait
    from plait.model.architecture import architecture
    from plait.model.cost import model_cost

    laws = plait.scale.fit(options.file, target=options.target, where=options.where).laws
    where = " ".join(f"--where '{each}'" for each in options.where)
    runs = " --runs " + " ".join(f"'{each}'" for each in options.runs) if options.runs else ""
    before = "these runs" if options.runs else "any run there"
    lines = [
        f"# Forecasts for {options.target:.0e} FLOPs, made before {before}", "",
        f"`python benchmarks/scaling_report.py predict {options.file.name} --target {options.target:g} {where}{runs}`: "
        f"the laws of {len(laws.runs)} runs up to {laws.runs.flops.max():.3g} FLOPs, one E for all: "
        f"{'yes' if laws.shared else 'no'}. A run deviates from its law by {laws.draws.noise:.2%} of the loss (one "
        f"standard deviation), groups by {laws.draws.group_noise:.2%}. The single run's 90 % interval is what a "
        "training is held against.", "",
        "| architecture | N* (90 %) | width | N | D | loss | the law's 90 % | a single run's 90 % |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]  # fmt: skip
    order = list(ARCHITECTURES)
    passing = next((large for large, passed in PASSED.items() if options.target in passed), options.target)
    wanted = [replace(job, budget=options.target) for job in jobs([passing])
              if not options.runs or f"{job.name}@{job.width}" in options.runs]  # fmt: skip
    for job in sorted(wanted, key=lambda job: (order.index(job.name), job.width)):
        law = laws.laws[job.name]
        best = law.frontier_estimates()["N_star"]
        params = model_cost(architecture(job.spec), seq=SEQ_LEN).active_params
        one = forecast(laws, job.name, params, job.budget / job.token_flops)
        sizes = f"{best.value:.3g} ({best.low:.3g} … {best.high:.3g}) | {job.width} | {params / 1e6:.2f}M"
        lines.append(
            f"| {job.name} | {sizes} | {job.budget / job.token_flops / 1e6:.0f}M | {one.loss:.4f} | "
            f"{one.law[0]:.4f} … {one.law[1]:.4f} | {one.run[0]:.4f} … {one.run[1]:.4f} |"
        )
    options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_forecasts(path: Path) -> dict[tuple[str, int, float], tuple[float, float, float]]:
    """What `predict` wrote: architecture, width and budget → loss and the ends of a single run's 90 % interval."""
    lines = path.read_text(encoding="utf-8").splitlines()
    budget = float(lines[0].split()[3])
    found = {}
    for line in lines:
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells[0] in ARCHITECTURES:
            low, high = (float(end) for end in cells[7].split(" … "))
            found[cells[0], int(cells[2]), budget] = (float(cells[5]), low, high)
    return found


def held_against(files: list[Path], rows: list[Row]) -> list[str]:
    """Runs against the forecasts that were fixed before them, at every rate that was tried."""
    forecasts = {key: one for path in files for key, one in read_forecasts(path).items()}
    lines = ["| architecture | width | FLOPs | rate | loss | forecast | its 90 % interval of one run | held |",
             "|---|---:|---:|---:|---:|---:|---:|---|"]  # fmt: skip
    held = total = 0
    for row in rows:
        width, loss = int(row[14].split()[0][2:]), float(row[4])
        if (told := forecasts.get((row[0], width, float(row[10])))) is None:
            continue
        value, low, high = told
        inside = low <= loss <= high
        held, total = held + inside, total + 1
        words = "yes" if inside else f"**no**, {'above' if loss > high else 'below'}"
        lines.append(
            f"| {row[0]} | {width} | {float(row[10]):.0e} | {float(row[9]):.5f} | {loss:.4f} | {value:.4f} | "
            f"{low:.4f} … {high:.4f} | {words} |"
        )
    return [*lines, "", f"{held} of {total} held."] if total else []


def rate_lines(rows: list[Row]) -> list[str]:
    """Where several rates were tried: the best one times the width, by group."""
    tried: dict[tuple[str, float, int], dict[int, list[tuple[float, float]]]] = {}
    for row in rows:
        width = int(row[14].split()[0][2:])
        group = tried.setdefault((row[0], float(row[10]), int(row[7])), {})
        group.setdefault(width, []).append((float(row[4]), float(row[9])))
    lines = ["| architecture | FLOPs | tokens per step | width: best rate × width (rates tried) |",
             "|---|---:|---:|---|"]  # fmt: skip
    for (name, budget, batch), by_width in tried.items():
        several = {width: found for width, found in sorted(by_width.items()) if len(found) > 1}
        told = ", ".join(f"{width}: {min(found)[1] * width:.3f} ({len(found)})" for width, found in several.items())
        if told:
            lines.append(f"| {name} | {budget:.0e} | {batch // 1024}k | {told} |")
    return lines


def frontier_lines(laws: Any, budgets: list[float]) -> list[str]:
    """The compute-optimal frontier with its intervals; beyond an architecture's own runs in italics."""
    from plait.analysis.scaling_document import shown

    lines = ["| architecture | " + " | ".join(f"{flops:.0e} FLOPs" for flops in budgets) + " |",
             "|---|" + "---:|" * len(budgets)]  # fmt: skip
    for law in laws.laws.values():
        cells = []
        for flops in budgets:
            found = law.frontier_estimates(flops)
            ratio = found["D_star"].value / found["N_star"].value
            text = f"{shown(found['loss'], 3)}; N* {shown(found['N_star'])}; D*/N* {ratio:.0f}"
            cells.append(f"*{text}*" if flops > 1.1 * law.largest else text)
        lines.append(f"| {law.name} | {' | '.join(cells)} |")
    return lines


def runs_table(rows: list[Row]) -> list[str]:
    budgets = sorted({float(row[10]) for row in rows})
    lines = ["| architecture | width | " + " | ".join(f"{b:.2g} FLOPs" for b in budgets) + " |",
             "|---|---:|" + "---:|" * len(budgets)]  # fmt: skip
    for name in ARCHITECTURES:
        own = {(int(row[14].split()[0][2:]), float(row[10])): row for row in rows if row[0] == name}
        for width in sorted({width for width, _ in own}):
            cells = [
                f"{float(row[4]):.4f} ({row[8]} × {int(row[7]) // 1024}k)" if (row := own.get((width, b))) else ""
                for b in budgets
            ]
            lines.append(f"| {name} | {width} | {' | '.join(cells)} |")
    return lines


def estimate(one: dict[str, Any], form: str = ".3g") -> str:
    text = f"{one['value']:{form}} ({one['interval'][0]:{form}} … {one['interval'][1]:{form}})"
    return f"[{text}]" if "verdict" in one else text


def laws_table(found: dict[str, Any]) -> list[str]:
    lines = ["| architecture | E | a | N* | D* | loss there | at N*/4 |",
             "|---|---:|---:|---:|---:|---:|---:|"]  # fmt: skip
    for name, law in found["architectures"].items():
        front, quarter = law["frontier"], next(o for o in law["off_frontier"] if o["size"] == 0.25)
        cells = [estimate(law["surface"]["E"]), *(estimate(front[k]) for k in ("a", "N_star", "D_star"))]
        ends = f"{estimate(front['loss'], '.4f')} | +{estimate(quarter['gap'])}"
        lines.append(f"| {name} | {' | '.join(cells)} | {ends} |")
    return lines


def comparison_lines(found: dict[str, Any]) -> list[str]:
    """Each pair at the target, the best share of attention, and the state law."""
    lines = [
        f"- {one['better']} against {one['than']}: P(better) {one['probability']:.2f}, lower by "
        f"{estimate(one['difference'])}: {one['verdict']}"
        for one in found["comparisons"]
    ]
    state, share = found["state"], found["attention"]["compute_optimal"]
    law = "no state law: see the notes"
    if state is not None:
        best = f"{state['best']}, P {state['probability']:.2f}"
        law = f"state-optimal: P* ∝ M^c, c = {estimate(state['c'])}; least perplexity for its state: {best}"
    best_share = f"{share['attention']:.0%}, P {share['probability']:.2f}"
    return [*lines, "", f"- compute-optimal share of attention: {best_share}", f"- {law}"]


def findings_table(found: dict[str, Any]) -> list[str]:
    lines = ["| finding | statement | verdict | P | |", "|---|---|---|---:|---|"]
    for one in found["findings"]:
        chance = "" if one["probability"] is None else f"{one['probability']:.2f}"
        lines.append(f"| {one['number']} | {one['statement']} | **{one['verdict']}** | {chance} | {one['detail']} |")
    return lines


def with_parts(page: str, parts: dict[str, list[str]]) -> str:
    """The page with its marked parts replaced; a part that it has no place for is added at its end."""
    for name in parts:
        if f"<!-- begin {name} -->" not in page:
            page += f"\n## {name.capitalize()}\n\n<!-- begin {name} -->\n<!-- end {name} -->\n"

    def replaced(found: re.Match[str]) -> str:
        name = found["name"]
        if name not in parts:
            return found[0]
        return "\n".join([f"<!-- begin {name} -->", *parts[name], f"<!-- end {name} -->"])

    return PART.sub(replaced, page)


def report(options: argparse.Namespace) -> None:
    """All runs, the laws, MAD's findings and what forecasts came to, as the tables of one page."""
    import plait

    rows = read_rows([options.file])
    every = read_rows(options.rates) if options.rates else rows
    result = plait.scale.fit(options.file, target=options.target, where=options.where)
    found = result.as_dict()
    where = " ".join(f"--where '{each}'" for each in options.where)
    parts = {
        "runs": runs_table(rows),
        "laws": [
            f"    plait scale fit {options.file.name} --target {options.target:g} {where}",
            "",
            *laws_table(found),
        ],
        "comparisons": comparison_lines(found),
        "findings": findings_table(found),
        "frontier": frontier_lines(result.laws, list(FRONTIER)),
        "forecasts": held_against(options.forecasts, every),
        "rates": rate_lines(every),
        "notes": [f"- {note}" for note in found["notes"]],
    }
    title = "# Scaling laws of six architectures on real bytes\n"
    page = options.out.read_text(encoding="utf-8") if options.out.exists() else title
    options.out.write_text(with_parts(page, parts), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    reporting = verbs.add_parser("report")
    predicting = verbs.add_parser("predict")
    for verb in (reporting, predicting):
        verb.add_argument("file", type=Path)
        verb.add_argument("-o", "--out", type=Path, required=True)
        verb.add_argument("--target", type=float, default=1e16)
        verb.add_argument("--where", action="append", default=[])
    reporting.add_argument("--forecasts", nargs="*", type=Path, default=[], help="files of `predict`, written before")
    reporting.add_argument("--rates", nargs="*", type=Path, default=[], help="rows of every rate, held against them")
    predicting.add_argument("--runs", nargs="*", default=[], help="these alone: ARCHITECTURE@WIDTH")
    options = parser.parse_args()
    {"predict": predict, "report": report}[options.verb](options)


if __name__ == "__main__":
    main()
