"""How the best learning rate depends on the batch and the width: the rule by which `plait scale plan` transfers rates.

    python benchmarks/scaling_rates.py train -o rates.csv [--device cuda] [--widths 64 128] [--batches 8192 65536]
    python benchmarks/scaling_rates.py fit rates.csv …

Trains one architecture at several widths, batches (in tokens per step) and rates, all for the same number of steps, on
bytes of Python sources; the rates of one width and batch are replicas of one track, so they read the same bytes in the
same order. `fit` also reads the rows of `scaling_runs.py`: it prints the best rate of each setting, the power of the
batch over all of them, and the excess loss of three transfer rules.
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
BASE = 2**13  # tokens per step
NEAR = 0.15  # log losses this far above the best are still near a parabola
COLUMNS = ("architecture", "width", "batch", "steps", "seq_len", "lr", "loss", "seconds", "device", "date")


class Row(NamedTuple):
    architecture: str
    width: int
    batch: int  # tokens per step
    steps: int
    lr: float
    loss: float


class Setting(NamedTuple):
    """What trainings at several rates have in common."""

    architecture: str
    width: int
    batch: int
    steps: int


Trial = dict[float, float]  # rate → loss


class Best(NamedTuple):
    """The best rate of one setting. `end`: it is the lowest or highest rate tried, so only a bound."""

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
    """Rows of `train`, or of `scaling_runs.py`, whose width is in the spec."""
    found = []
    for row in csv.DictReader(path.open(encoding="utf-8")):
        width = row.get("width") or row["spec"].split()[0].removeprefix("d=")
        counts = (int(width), int(row["batch"]), int(row["steps"]))
        found.append(Row(row["architecture"], *counts, float(row["lr"]), float(row["loss"])))
    return found


def trials_of(rows: list[Row]) -> dict[Setting, Trial]:
    """Settings that were trained at several rates."""
    found: dict[Setting, Trial] = {}
    for row in rows:
        found.setdefault(Setting(row.architecture, row.width, row.batch, row.steps), {})[row.lr] = row.loss
    return {setting: trial for setting, trial in sorted(found.items()) if len(trial) > 1}


def best_rate(trial: Trial) -> Best:
    """The minimum of the parabola through the best rate and its neighbours, in log rate."""
    rates = sorted(trial)
    at = min(range(len(rates)), key=lambda i: trial[rates[i]])
    if at in (0, len(rates) - 1):
        return Best(rates[at], trial[rates[at]], True)
    near = rates[at - 1 : at + 2]
    curve = np.polynomial.Polynomial.fit(np.log(near), [trial[rate] for rate in near], 2)
    lowest = float(curve.deriv().roots()[0].real)
    return Best(math.exp(lowest), float(curve(lowest)), False)


def loss_at(trial: Trial, rate: float) -> float:
    """Losses between the rates tried, linear in log rate; beyond them that of the last."""
    rates = sorted(trial)
    return float(np.interp(math.log(rate), np.log(rates), [trial[each] for each in rates]))


class Rule(NamedTuple):
    """Best rate × width: `constants` by architecture at 8k tokens per step, times (batch / 8k) to the `power`."""

    constants: dict[str, float]
    power: float


def fit_rule(trials: dict[Setting, Trial], near: float = NEAR) -> Rule:
    """Least squares of log L = base of the setting + k (log(rate · width) − log c − p log(batch / 8k))², with one k for
    all: linear in k, k log c and k p. Of each setting the rates whose log L is within `near` of its best."""
    names = sorted({setting.architecture for setting in trials})
    design, losses = [], []
    for setting, trial in trials.items():
        kept = {rate: loss for rate, loss in trial.items() if math.log(loss / min(trial.values())) < near}
        x_N = np.log(list(kept)) + math.log(setting.width)
        columns = [x_N**2, *(x_N * (setting.architecture == name) for name in names),
                   x_N * math.log(setting.batch / BASE)]  # fmt: skip
        part_NK, loss_N = np.stack(columns, 1), np.log(list(kept.values()))
        design.append(part_NK - part_NK.mean(0))  # what a setting's losses have in common is its own base
        losses.append(loss_N - loss_N.mean())
    (k, *linear, last), *_ = np.linalg.lstsq(np.concatenate(design), np.concatenate(losses), rcond=None)
    return Rule({name: math.exp(-c / (2 * k)) for name, c in zip(names, linear, strict=True)}, float(-last / (2 * k)))


def rule_intervals(trials: dict[Setting, Trial], draws: int = 1000) -> dict[str, tuple[float, float]]:
    """90 % intervals of the rule's numbers: a bootstrap over settings."""
    settings, rng = list(trials), np.random.default_rng(0)
    found: dict[str, list[float]] = {}
    for _ in range(draws):
        drawn = {settings[i]._replace(steps=n): trials[settings[i]]
                 for n, i in enumerate(rng.integers(len(settings), size=len(settings)))}  # fmt: skip
        with np.errstate(all="ignore"):
            rule = fit_rule(drawn)
        for name, value in {**rule.constants, "p": rule.power}.items():
            found.setdefault(name, []).append(value)
    return {name: tuple(np.nanpercentile(values, [5, 95])) for name, values in found.items()}


def settings_table(trials: dict[Setting, Trial]) -> list[str]:
    """The best rate of each setting, and what the rates of three rules would cost there."""
    powers = {"0.256": 0.0, "· (batch / 8k)^¼": 0.25, "· √(batch / 8k)": 0.5}
    names = ("architecture", "width", "tokens per step", "steps", "best rate × width", *powers)
    lines = [f"| {' | '.join(names)} |", "|---|" + "---:|" * (len(names) - 1)]
    for setting, trial in trials.items():
        best, cells = best_rate(trial), []
        for power in powers.values():
            rate = 0.256 / setting.width * max(1.0, setting.batch / BASE) ** power
            cells.append(f"+{max(0.0, loss_at(trial, rate) - min(trial.values())):.4f}")
        bound = " or beyond" if best.end else ""
        lines.append(f"| {setting.architecture} | {setting.width} | {setting.batch:,} | {setting.steps:,} | "
                     f"{best.rate * setting.width:.3f}{bound} | {' | '.join(cells)} |")  # fmt: skip
    return lines


def fit(options: argparse.Namespace) -> None:
    """The rule over all files, and the table of their settings."""
    trials = trials_of([row for path in options.files for row in read_rows(path)])
    rule, ends = fit_rule(trials), rule_intervals(trials)
    several = sum(len(trial) for trial in trials.values())
    print(f"{len(trials)} settings, {several} trainings; best rate × width = c · (batch / 8k)^p, 90 % intervals:")
    for name, value in {"p": rule.power, **rule.constants}.items():
        low, high = ends[name]
        print(f"{name}: {value:.2f} ({low:.2f} … {high:.2f})")
    shown = {setting: trial for setting, trial in trials.items() if len(trial) >= options.least}
    print("\n".join(settings_table(shown)))


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
    fitting.add_argument("--least", type=int, default=3, help="rates tried of settings in the table")
    options = parser.parse_args()
    {"train": train, "fit": fit}[options.verb](options)


if __name__ == "__main__":
    main()
