"""The table of the reproduction page: every feature of the papers, what became of it, by which command, to what end.

Where `plait verify` has a fact for a feature, the fact is run and speaks for itself; the others, which need trainings,
are told in `features.txt` with where their numbers are.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FEATURES = Path(__file__).with_name("features.txt")
PAPERS = {"L": "LiteTransformerSearch", "P": "PAR Transformer", "M": "Mechanistic Architecture Design",
          "F": "Forgetting Transformer", "C": "Across the papers"}  # fmt: skip
STATUSES = ("reproduced", "exact part reproduced", "partly", "not shown", "not here", "fails")
#: What these print is measured, and another on every machine and day.
MEASURED = ("L18", "L22")


@dataclass(frozen=True)
class Feature:
    id: str
    kind: str  # X, S, G, L, or several: what can be checked here first
    what: str = ""
    status: str = ""
    command: str = ""
    result: str = ""  # of one with a fact: what was found beside it


def features() -> list[Feature]:
    lines = FEATURES.read_text(encoding="utf-8").splitlines()
    cells = [[cell.strip() for cell in line.split(" | ")] for line in lines if line and not line.startswith("#")]
    return [Feature(*row) if len(row) > 3 else Feature(row[0], row[1], result="".join(row[2:])) for row in cells]


def reproduction() -> str:
    from plait.papers.verify import FactResult, all_facts

    results: dict[str, list[FactResult]] = {}
    for fact in all_facts():
        if fact.id[0] != "E":
            results.setdefault(fact.id.partition(".")[0], []).append(fact.result())
    known = features()
    further = [Feature(id, "X") for id in results if id not in {feature.id for feature in known}]
    told = [row for feature in (*known, *further) for row in _rows(feature, results.get(feature.id, []))]
    text = [_tally(told)]
    for letter, paper in PAPERS.items():
        body = [f"| {' | '.join(row)} |" for row in told if row[0][0] == letter]
        text.append(f"### {paper}\n\n| id | class | what | status | command | result |\n|---|---|---|---|---|---|\n")
        text[-1] += "\n".join(body)
    return "\n\n".join(text)


def _rows(feature: Feature, results: list) -> list[tuple[str, ...]]:
    if not results:
        return [(feature.id, feature.kind, feature.what, feature.status, f"`{feature.command}`", feature.result)]
    rows = []
    for fact in results:
        good = "reproduced" if feature.kind == "X" else "exact part reproduced"
        status = {"pass": good, "not here": "not here"}.get(fact.status, "fails")
        found = "; ".join(part for part in (_found(fact.id, fact.expected, fact.ours), feature.result) if part)
        rows.append((fact.id, feature.kind, fact.what, status, f"`plait verify {fact.id}`", found))
    return [tuple(cell.replace("|", r"\|") for cell in row) for row in rows]


def _found(id: str, expected: str, ours: str) -> str:
    """What came out, without digits that differ from machine to machine."""
    if id in MEASURED:
        return "measured on the machine that runs it"
    return re.sub(r"\b\d+(\.\d+)?e-\d+", "rounding", ours) if "gap" in ours else ours


def _tally(rows: list[tuple[str, ...]]) -> str:
    seen: dict[str, str] = {}
    for id, _, _, status, *_ in rows:
        seen.setdefault(id.partition(".")[0], status)
    counted = Counter(seen.values())
    parts = ", ".join(f"{counted[status]} {status}" for status in STATUSES if counted[status])
    return f"{len(seen)} features: {parts}."
