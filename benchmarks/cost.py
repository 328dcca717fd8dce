"""The speed of costing architectures: a hundred thousand candidates at once, against one by one in the same run.

    python benchmarks/cost.py [--out FILE.json] [--candidates 100000] [--sample 200]

The candidates are LiteTransformerSearch's (Javaheripi et al. 2022, arXiv:2203.02094): 2 to 16 layers, width 128 to 960
in steps of 64, and for every layer 2, 4 or 8 heads and an inner width of 128 to 4032 in steps of 64, with the GPT-2 and
the Transformer-XL backbone. A cost is parameters, FLOPs and state. Before anything is timed, both methods must agree
on the sample. The ratio is against `model_cost` of a parsed architecture; parsing is timed separately. `plait show` is
timed as run from a shell, including start-up.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import numpy as np
from rich.console import Console
from rich.table import Table

from plait import __version__
from plait.mixers.attn import AttnOptions, XlAttnOptions
from plait.mixers.mlp import MlpOptions
from plait.model.architecture import Architecture, architecture
from plait.model.cost import decoder_costs, model_cost

SEQ, DEEPEST = 192, 16
TARGET_S = 1.0
REPEATS = 5


@dataclass(frozen=True)
class Space:
    name: str
    header: str
    attention: str
    sizes: Callable[..., Any]


SPACES = (
    Space(
        "GPT-2",
        "norm=layer",
        "attn[heads={},pos=none,bias]",
        lambda heads: AttnOptions.sizes(heads=heads, pos="none", bias=True),
    ),
    Space(
        "Transformer-XL",
        "norm=layer final_norm=false",
        "xl-attn[heads={}]",
        lambda heads: XlAttnOptions.sizes(heads=heads),
    ),
)


@dataclass(frozen=True)
class Candidates:
    """One row a candidate; heads and inner widths have a column for every depth there may be."""

    layers_N: np.ndarray
    d_N: np.ndarray
    heads_NL: np.ndarray
    inner_NL: np.ndarray

    def text(self, space: Space, i: int) -> str:
        pairs = zip(self.heads_NL[i, : self.layers_N[i]], self.inner_NL[i, : self.layers_N[i]], strict=True)
        layers = " ".join(f"{space.attention.format(heads)} mlp[inner={inner}]" for heads, inner in pairs)
        return f"d={self.d_N[i]} vocab=50257 {space.header} | {layers}"


def draw(count: int, seed: int = 0) -> Candidates:
    stream = np.random.default_rng(seed)
    return Candidates(
        layers_N=stream.integers(2, DEEPEST + 1, count),
        d_N=64 * stream.integers(2, 16, count),
        heads_NL=stream.choice((2, 4, 8), (count, DEEPEST)),
        inner_NL=64 * stream.integers(2, 64, (count, DEEPEST)),
    )


def all_at_once(space: Space, drawn: Candidates) -> dict[str, Any]:
    layers: list[tuple[Any, Any]] = []
    for depth in range(DEEPEST):
        present = depth < drawn.layers_N
        layers.append((space.sizes(drawn.heads_NL[:, depth]), present))
        layers.append((MlpOptions.sizes(inner=drawn.inner_NL[:, depth]), present))
    return decoder_costs(drawn.d_N, layers, norm=2 * drawn.d_N, seq=SEQ)


def one_by_one(given: list[Architecture]) -> list[tuple[int, int, int]]:
    costs = (model_cost(arch, seq=SEQ) for arch in given)
    return [(c.decoder_params - c.parts["final norm"], c.flops - c.output_flops, c.kv_cache) for c in costs]


def measured(space: Space, count: int, sample: int) -> dict[str, Any]:
    drawn = draw(count)
    texts = [drawn.text(space, i) for i in range(sample)]
    found = all_at_once(space, drawn)
    columns = [found[name][:sample].tolist() for name in ("params", "flops", "kv_cache")]
    read = [architecture(text) for text in texts]
    if one_by_one(read) != list(zip(*columns, strict=True)):
        raise SystemExit(f"{space.name}: the two ways disagree; nothing was timed")
    together, apart, reading = [], [], []
    for _ in range(REPEATS):  # in turns, so that a slow moment of the machine falls on both
        together.append(timed(lambda: all_at_once(space, drawn)))
        apart.append(timed(lambda: one_by_one(read)) / sample)
        reading.append(timed(lambda: [architecture(text) for text in texts]) / sample)
    seconds, each = median(together), median(apart)
    return {
        "space": space.name,
        "candidates": count,
        "seconds": seconds,
        "one_by_one_us": 1e6 * each,
        "reading_us": 1e6 * median(reading),
        "ratio": each * count / seconds,
        "in_time": seconds * 100_000 / count < TARGET_S,
    }


def show_seconds() -> list[float]:
    program = [sys.executable, "-c", "from plait.cli.main import main; main()", "show", "gpt2-124m"]
    return [timed(lambda: subprocess.run(program, check=True, stdout=subprocess.DEVNULL)) for _ in range(REPEATS)]


def timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--candidates", type=int, default=100_000)
    parser.add_argument("--sample", type=int, default=200, help="candidates that are costed one by one")
    given = parser.parse_args()
    rows = [measured(space, given.candidates, min(given.sample, given.candidates)) for space in SPACES]
    shown = show_seconds()

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("space", "candidates", "at once", "one by one", "reading", "ratio", "in time"):
        table.add_column(column, justify="left" if column == "space" else "right")
    for row in rows:
        table.add_row(
            row["space"], f"{row['candidates']:,}", f"{row['seconds']:.3f} s", f"{row['one_by_one_us']:,.0f} µs each",
            f"{row['reading_us']:,.0f} µs each",
            f"{row['ratio']:,.0f}×", "yes" if row["in_time"] else "no",
        )  # fmt: skip
    out = Console(highlight=False)
    out.print(table)
    out.print(f"in time: 100,000 candidates in less than {TARGET_S:g} s")
    out.print(f"plait show gpt2-124m: {median(shown):.2f} s (median of {REPEATS}, {min(shown):.2f}–{max(shown):.2f})")
    if given.out:
        document = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": platform.processor() or platform.machine(),
            "cpus": os.cpu_count(),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "plait": __version__,
            "bytecode_written": not sys.dont_write_bytecode,
            "costing": rows,
            "show_seconds": {"median": median(shown), "min": min(shown), "max": max(shown)},
        }
        given.out.write_text(json.dumps(document, indent=2) + "\n")


if __name__ == "__main__":
    main()
