"""What a differentiable search costs, as a multiple of training the baseline for as many steps.

    python benchmarks/supernet.py [--layers 12] [--d 128] [--steps 300] [--device cpu] [--out FILE.md]

The baseline is the network that alternates attention and feed-forward, as deep as the supernet, whose layers choose
between attention, feed-forward and nothing. Both train on the same text with the same recipe, taking turns every few
steps, so that a machine that drifts slows down both. PAR Transformer reports less than 2 (arXiv:2009.04534, Sec. 2.1).
"""

from __future__ import annotations

import argparse
import platform
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table

from plait import __version__
from plait.data import open_corpus
from plait.supernet.network import Supernet
from plait.supernet.settings import Settings, SupernetJob
from plait.supernet.training import SupernetTraining
from plait.training.distributed import Processes
from plait.training.recipe import Budget, Job, Recipe, fitted
from plait.training.trainer import Batches, Trainer

#: How the weights mix, how the logits do.
WAYS = (("path", "swap"), ("path", "soft"), ("path", "path"), ("soft", "soft"))
TURN = 10  # steps


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    arguments.add_argument("--layers", type=int, default=12)
    arguments.add_argument("--d", type=int, default=128)
    arguments.add_argument("--heads", type=int, default=4)
    arguments.add_argument("--batch", type=int, default=8)
    arguments.add_argument("--length", type=int, default=128)
    arguments.add_argument("--steps", type=int, default=300)
    arguments.add_argument("--data", default="builtin:stdlib")
    arguments.add_argument("--device", default="cpu")
    arguments.add_argument("--out", type=Path)
    given = arguments.parse_args()
    out, dist = Console(), Processes(0, 1, torch.device(given.device))
    precision = "bf16" if given.device == "cuda" else "fp32"
    corpus, recipe = open_corpus(given.data), Recipe(batch=given.batch, seq_len=given.length)
    attention, feed_forward = f"attn[heads={given.heads}]", f"mlp[inner={4 * given.d}]"
    baseline = fitted(f"d={given.d} | ({attention} {feed_forward})x{given.layers // 2}", corpus)
    options = [*baseline.layers[:2], None]

    def sync() -> None:
        if given.device == "cuda":
            torch.cuda.synchronize()

    table = Table("weights", "logits", "baseline ms per step", "search ms per step", "ratio")
    rows = []
    for weights, logits in WAYS:
        settings = Settings(steps=given.steps, weights=weights, architecture=logits, patience=1.0)
        job = SupernetJob(corpus, recipe, settings, device=given.device, precision=precision)
        net = Supernet(baseline.header, [options] * given.layers, device=given.device)
        sources = {stage: Batches(baseline, text, recipe, 0, dist) for stage, text in job.split().items()}
        search = SupernetTraining(net, sources, recipe, settings, precision=precision)
        train = Trainer(Job(baseline, corpus, recipe, Budget(steps=given.steps), 0, precision), given.steps, dist)
        times = taking_turns([lambda t=train: t.advance(), lambda s=search: s.advance()], given.steps, sync)
        cells = [f"{1e3 * seconds / (given.steps - TURN):.1f}" for seconds in times]
        rows.append([weights, logits, *cells, f"{times[1] / times[0]:.2f}"])
        table.add_row(*rows[-1])
    out.print(table)
    if given.out:
        given.out.write_text(report(given, baseline.text, rows))


def taking_turns(steps_of: list[Callable[[], object]], steps: int, sync: Callable[[], None]) -> list[float]:
    """Seconds that each took for all its steps."""
    for step in steps_of:
        step()  # what a first call sets up is nobody's cost
    total = [0.0] * len(steps_of)
    for _ in range(0, steps - TURN, TURN):
        for at, step in enumerate(steps_of):
            sync()
            begun = time.perf_counter()
            for _ in range(TURN):
                step()
            sync()
            total[at] += time.perf_counter() - begun
    return total


def report(given: argparse.Namespace, baseline: str, rows: list[list[str]]) -> str:
    where = torch.cuda.get_device_name() if given.device == "cuda" else platform.processor() or platform.machine()
    head = ["weights", "logits", "baseline, ms per step", "search, ms per step", "ratio"]
    lines = [head, ["---"] * len(head), *rows]
    body = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    return (
        f"# A differentiable search against one training of the baseline, {date.today()}\n\n"
        f"plait {__version__}, torch {torch.__version__}, {where}, {torch.get_num_threads()} threads. "
        f"`python benchmarks/supernet.py --layers {given.layers} --d {given.d} --batch {given.batch} "
        f"--length {given.length} --steps {given.steps} --device {given.device}`\n\n"
        f"Baseline `{baseline}`; every layer of the supernet chooses between its attention, its feed-forward and "
        f"nothing. {given.steps} steps of each, taking turns every {TURN}.\n\n{body}\n"
    )


if __name__ == "__main__":
    main()
