"""How the best learning rate depends on the batch and the width: the rule that `plait scale plan` transfers rates by.

    python benchmarks/scaling_rates.py train -o rates.csv [--device cuda] [--widths 64 128] [--batches 8192 65536]
    python benchmarks/scaling_rates.py fit rates.csv -o rates.md

Trains one architecture at several widths, batches (in tokens per step) and rates, all for the same number of steps, on
bytes of Python sources; the rates of one width and batch are replicas of one track, so they read the same bytes in the
same order. A parabola through the losses over log rate gives the best rate of each width and batch, and from these
follow the powers of batch and width. A best rate at either end of the rates tried is only a bound, and is said to be
one.
"""

from __future__ import annotations

import argparse
import csv
import math
import time
from pathlib import Path
from typing import NamedTuple

import numpy as np

WARMUP, DECAY = 30, 0.2
COLUMNS = ("architecture", "width", "batch", "steps", "seq_len", "lr", "loss", "seconds", "device", "date")


class Row(NamedTuple):
    architecture: str
    width: int
    batch: int
    steps: int
    seq_len: int
    lr: float
    loss: float


class Best(NamedTuple):
    """The best rate of one width and batch. `end`: it is the lowest or highest rate tried, so only a bound."""

    rate: float
    loss: float
    end: bool


def train(options: argparse.Namespace) -> None:
    """A row for each rate, written when the training of its width and batch has ended."""
    import torch
    from scaling_runs import ARCHITECTURES, GDN, HEAD, python_sources

    from plait.model.architecture import architecture
    from plait.training.recipe import Recipe
    from plait.training.track import Replica, Text, Track, track_recipe

    until = time.time() + options.seconds
    read, validation = python_sources()
    text = Text.cut("python sources", read, validation, options.seq_len, options.held_out)
    body = ARCHITECTURES[options.architecture][0]
    fresh = not options.out.exists()
    for batch in options.batches:
        for width in options.widths:
            spec = f"d={width} vocab=256 tie=true | " + body.format(gdn=GDN, heads=max(1, width // HEAD))
            recipe = track_recipe(Recipe(batch=batch // options.seq_len, seq_len=options.seq_len), WARMUP)
            replicas = [Replica(each / width, 0) for each in options.rates]
            track = Track(architecture(spec), replicas, [text], recipe, device=options.device, compiled=False)
            began = time.time()

            def in_time(step: int) -> None:
                if time.time() > until:
                    raise TimeoutError

            try:
                decay = round(DECAY * options.steps)
                for step in range(0, options.steps - decay, 20):
                    track.advance_to(step)
                    in_time(step)
                losses = track.annealed(options.steps, decay, in_time).mean(1)
            except TimeoutError:
                print(f"out of time at width {width}, {batch} tokens per step", flush=True)
                return
            took = time.time() - began
            with options.out.open("a", newline="", encoding="utf-8") as file:
                write = csv.writer(file, lineterminator="\n")
                if fresh:
                    write.writerow(COLUMNS)
                    fresh = False
                date = time.strftime("%Y-%m-%d", time.gmtime())
                shape = (options.architecture, width, batch, options.steps, options.seq_len)
                for replica, loss in zip(replicas, losses, strict=True):
                    write.writerow((*shape, replica.lr, float(loss), round(took, 1), options.device, date))
            told = ", ".join(f"{each}: {loss:.4f}" for each, loss in zip(options.rates, losses, strict=True))
            print(f"width {width}, {batch} tokens per step, rate × width: {told} ({took:.0f} s)", flush=True)
            del track
            torch.cuda.empty_cache() if options.device == "cuda" else None


def read_rows(path: Path) -> list[Row]:
    rows = csv.DictReader(path.open(encoding="utf-8"))
    return [Row(row["architecture"], *(int(row[name]) for name in ("width", "batch", "steps", "seq_len")),
                float(row["lr"]), float(row["loss"])) for row in rows]  # fmt: skip


def best_rate(rates: list[float], losses: list[float]) -> Best:
    """The minimum of the parabola through the best rate and its neighbours, in log rate."""
    order = np.argsort(rates)
    x, y = np.log2(np.asarray(rates))[order], np.asarray(losses)[order]
    at = int(np.argmin(y))
    if at in (0, len(x) - 1):
        return Best(float(2 ** x[at]), float(y[at]), True)
    curve = np.polynomial.Polynomial.fit(x[at - 1 : at + 2], y[at - 1 : at + 2], 2)
    lowest = float(curve.deriv().roots()[0].real)
    return Best(float(2**lowest), float(curve(lowest)), False)


def loss_at(rates: list[float], losses: list[float], rate: float) -> float:
    """Losses between the rates tried, linear in log rate; beyond them that of the last."""
    order = np.argsort(rates)
    return float(np.interp(math.log(rate), np.log(rates)[order], np.asarray(losses)[order]))


def powers(best: dict[tuple[int, int], Best]) -> dict[str, float]:
    """Least squares of log best rate on log width and log batch, of best rates inside the range tried."""
    inside = {key: one for key, one in best.items() if not one.end}
    if len({width for width, _ in inside}) < 2 or len({batch for _, batch in inside}) < 2 or len(inside) < 3:
        return {}
    design = np.array([[1.0, math.log(width), math.log(batch)] for width, batch in inside])
    found, *_ = np.linalg.lstsq(design, np.array([math.log(one.rate) for one in inside.values()]), rcond=None)
    return {"width": float(found[1]), "batch": float(found[2])}


def fit(options: argparse.Namespace) -> None:
    """The best rates, the powers, and what transferring from the smallest width and batch costs by each rule."""
    lines = []
    for path in options.files:
        rows = read_rows(path)
        trials: dict[tuple[int, int], tuple[list[float], list[float]]] = {}
        for row in rows:
            rates, losses = trials.setdefault((row.width, row.batch), ([], []))
            rates.append(row.lr)
            losses.append(row.loss)
        best = {key: best_rate(*trial) for key, trial in sorted(trials.items())}
        first = min(best)
        lines += [
            "", f"`{path.name}`: {rows[0].architecture}, {rows[0].steps} steps, sequences of {rows[0].seq_len}", "",
            "| width | tokens per step | best rate × width | loss | as 1/d alone | as 1/d · √batch |",
            "|---:|---:|---:|---:|---:|---:|",
        ]  # fmt: skip
        for (width, batch), one in best.items():
            alone = best[first].rate * first[0] / width
            cells = []
            for rate in (alone, alone * math.sqrt(batch / first[1])):
                cost = loss_at(*trials[width, batch], rate) - min(trials[width, batch][1])
                cells.append(f"{rate * width:.3f}, +{max(0.0, cost):.4f}")
            bound = ", at the end of the rates tried" if one.end else ""
            found = f"{one.rate * width:.3f}{bound} | {one.loss:.4f}"
            lines.append(f"| {width} | {batch:,} | {found} | {' | '.join(cells)} |")
        if power := powers(best):
            lines += ["", f"Best rate ∝ width^{power['width']:.2f} · batch^{power['batch']:.2f}."]
    text = "\n".join(lines) + "\n"
    options.out.write_text(text, encoding="utf-8") if options.out else print(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    training = verbs.add_parser("train")
    training.add_argument("-o", "--out", type=Path, required=True)
    training.add_argument("--device", default="cuda")
    training.add_argument("--architecture", default="Transformer++")
    training.add_argument("--widths", nargs="*", type=int, default=[64, 128])
    training.add_argument("--batches", nargs="*", type=int, default=[2**13, 2**16], help="tokens per step")
    training.add_argument("--rates", nargs="*", type=float, default=[0.128, 0.256, 0.512, 1.024], help="times width")
    training.add_argument("--steps", type=int, default=800)
    training.add_argument("--seq-len", type=int, default=256)
    training.add_argument("--held-out", type=int, default=2**17, help="bytes")
    training.add_argument("--seconds", type=float, default=math.inf)
    fitting = verbs.add_parser("fit")
    fitting.add_argument("files", nargs="+", type=Path)
    fitting.add_argument("-o", "--out", type=Path)
    options = parser.parse_args()
    {"train": train, "fit": fit}[options.verb](options)


if __name__ == "__main__":
    main()
