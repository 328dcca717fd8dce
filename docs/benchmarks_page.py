"""The benchmarks page, from benchmarks/results: how fast plait is beside its peers, and a line for every result."""

from __future__ import annotations

import re
from pathlib import Path

RESULTS = Path(__file__).resolve().parent.parent / "benchmarks" / "results"
PLACE = "../benchmarks/results"


def tables(text: str) -> list[list[list[str]]]:
    """The tables of a page, each as rows of cells, the head first."""
    found: list[list[list[str]]] = [[]]
    for line in text.splitlines():
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            if not all(re.fullmatch(r":?-+:?", cell) for cell in cells):
                found[-1].append(cells)
        elif found[-1]:
            found.append([])
    return [table for table in found if table]


def newest(ending: str, with_row: str = "") -> tuple[str, str]:
    """Name and text of the newest result whose name ends so and which has a table with a row of that name."""
    found = [(path.name, path.read_text(encoding="utf-8")) for path in sorted(RESULTS.glob(f"*-{ending}.md"))]
    return next((name, text) for name, text in reversed(found) if f"\n| {with_row}" in text)


def peers() -> str:
    """A row per peer and shape: how many times as fast plait is."""
    rows = [*_forgetting(), *_kernels(), *_training()]
    lines = ["| what | peer | forward | forward + backward | measured |", "|---|---|---:|---:|---|"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)


def _forgetting() -> list[tuple[str, ...]]:
    name, text = newest("h200-forgetting")
    after = text.split("Ratios to ours with open gates", 1)[1]
    head, *body = tables(after)[0]
    return [
        (
            f"forgetting attention, {shape}",
            _run_of(peer),
            *(cell.split(" / ") if " / " in cell else ("–", "–")),
            _where(name),
        )
        for peer, *cells in body
        for shape, cell in zip(head[1:], cells, strict=True)
        if shape in ("L 4096 D 64", "L 16384 D 64", "L 4096 D 128")
    ]


def _run_of(peer: str) -> str:
    return peer.replace(" (this run)", "") if "(this run)" in peer else f"{peer} (an earlier run)"


def _kernels() -> list[tuple[str, ...]]:
    name, text = newest("h200-kernels", "ratio |")
    table = next(table for table in tables(text) if any(row[0] == "ratio" for row in table))
    peer = next(row[0] for row in table if row[0].startswith("fla"))
    _, _, forward, both, _ = next(row for row in table if row[0] == "ratio")
    return [
        ("gated linear attention, 8 × 4096, K 96, V 192", peer, forward.strip("*"), both.strip("*"), _where(name)),
    ]


def _training() -> list[tuple[str, ...]]:
    """The newest ratio of every model and size, the small ones first."""
    rows: dict[tuple[str, str], tuple[str, ...]] = {}
    for path in sorted(RESULTS.glob("*-h200-*.md")):
        text = path.read_text(encoding="utf-8")
        peer = re.search(r"flash-linear-attention \d+\.\d+\.\d+", text)
        for head, *body in tables(text):
            if peer is None or "ratio" not in head or "flash-linear-attention, tokens/s" not in head:
                continue
            at = head.index("ratio")
            for row in body:
                if row[at]:
                    what = f"training {row[0]}, {row[1]}"
                    rows[row[1], row[0]] = (what, peer[0], "", row[at].strip("*"), _where(path.name))
    return [rows[key] for key in sorted(rows, key=lambda key: key[0])]


def _where(name: str) -> str:
    return f"[{name[:10]}, {'H200' if 'h200' in name else 'CPU'}]({PLACE}/{name})"


def _title(text: str) -> str:
    line = next(line for line in text.splitlines() if line.strip())
    return re.sub(r",? 20\d\d-\d\d-\d\d$", "", line.lstrip("# ").rstrip(".?"))


def results() -> str:
    """Every result that is written in words, the newest first."""
    lines = ["| result | date | machine |", "|---|---|---|"]
    for path in sorted(RESULTS.glob("*.md"), reverse=True):
        machine = "H200" if "h200" in path.name else "CPU" if "-cpu-" in path.name else "see there"
        lines.append(
            f"| [{_title(path.read_text(encoding='utf-8'))}]({PLACE}/{path.name}) | {path.name[:10]} | {machine} |"
        )
    return "\n".join(lines)
