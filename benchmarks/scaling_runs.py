"""Trainings for scaling laws of six architectures on real bytes: IsoFLOP groups as large as the time allows.

    python benchmarks/scaling_runs.py run -o FOLDER [--device cuda] [--workers 8] [--seconds 255]
    python benchmarks/scaling_runs.py check [--device cuda]
    python benchmarks/scaling_runs.py join FOLDER -o benchmarks/results/DATE-scaling.csv
    plait scale fit benchmarks/results/DATE-scaling.csv --target 1e17

The text is Python: the sources of the standard library and of torch, as the machine has them. Every size of an
architecture is one track (`plait.training.track`): its rate is stable, and at each budget a branch is annealed, so a
size costs little more than its largest budget. Steps are captured as CUDA graphs without being compiled: of so many
shapes compiling would take longer than training. On a GPU several workers share it: start `nvidia-cuda-mps-control -d`
first. A row is written when its run has ended, so whatever stops this leaves a table; budgets that no longer fit into
`--seconds` are left out, the largest last of all.

Rates are those that were best at width 128 in the truth table (`2026-11-16-h200-truth.json`), transferred as 1/d up to
0.02.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import os
import pickle
import sysconfig
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

SEQ_LEN, BATCH, HELD_OUT = 256, 32, 2**18
WARMUP, DECAY = 30, 0.2
HEAD = 16
RATE_WIDTH, HIGHEST_RATE = 128, 0.02
#: Widths by budget. Bytes want many of them for each parameter: the best sizes are small.
GROUPS = {
    3e12: (16, 32, 48, 64),
    8e12: (32, 48, 64, 96),
    2e13: (48, 64, 96, 128),
    6e13: (64, 96, 128, 192),
}
GDN = f"gated-deltanet[head_dim={HEAD}] swiglu"
#: Name → spec of four blocks, the best rate at width 128.
ARCHITECTURES = {
    "gated DeltaNet 25 %": ("({gdn})x3 attn[heads={heads}] swiglu", 2e-3),
    "Mamba-2": ("(mamba2[head_dim=32,state=64] swiglu)x4", 8e-3),
    "Hyena": ("(hyena swiglu)x4", 2e-3),
    "StripedHyena 25 %": ("(hyena swiglu)x3 attn[heads={heads}] swiglu", 2e-3),
    "FoX": ("(fox[heads={heads}] swiglu)x4", 2e-3),
    "Transformer++": ("(attn[heads={heads}] swiglu)x4", 1e-3),
}
COLUMNS = ("architecture", "flops", "params", "tokens", "loss", "state", "attention", "batch", "steps", "lr", "budget",
           "vocab", "data", "train_seconds", "spec")  # fmt: skip


@dataclass(frozen=True)
class Plan:
    """One size of one architecture and the steps at which branches are annealed."""

    name: str
    spec: str
    lr: float
    token_flops: float
    ends: tuple[tuple[float, int], ...]  # budget, steps


def plans(options: argparse.Namespace) -> list[Plan]:
    from plait.model.architecture import architecture
    from plait.scaling.sizes import token_flops

    found = []
    for name, (body, rate) in ARCHITECTURES.items():
        for width in sorted({width for widths in GROUPS.values() for width in widths}):
            spec = f"d={width} vocab=256 tie=true | " + body.format(gdn=GDN, heads=max(1, width // HEAD))
            cost = token_flops(architecture(spec), SEQ_LEN)
            ends = [
                (flops / options.shrink, max(1, round(flops / options.shrink / cost / (options.batch * SEQ_LEN))))
                for flops, widths in GROUPS.items()
                if width in widths
            ]
            found.append(Plan(name, spec, min(HIGHEST_RATE, rate * RATE_WIDTH / width), cost, tuple(ends)))
    return found


def guess(plan: Plan) -> float:
    """How long it takes, in some unit: a step's launches and its products. The longest go first."""
    slow = 2.0 if "gated-deltanet" in plan.spec or "mamba2" in plan.spec else 1.0
    return plan.ends[-1][1] * (3 * slow + plan.token_flops / 1e7)


def python_sources() -> tuple[np.ndarray, np.ndarray]:
    """Training and validation bytes; every 50th file, by its hash, is validation."""
    import torch

    roots = [Path(sysconfig.get_path("stdlib")), Path(torch.__file__).parent]
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if "site-packages" in name or "dist-packages" in name or not path.is_file():
                continue
            held = int(sha256(name.encode()).hexdigest(), 16) % 50 == 0
            parts[held].append(path.read_bytes() + b"\n")
    train, validation = (np.frombuffer(b"".join(parts[held]), np.uint8) for held in (False, True))
    return train, validation


def text_of(path: Path, held_out: int) -> Any:
    from plait.training.track import Text

    kept = np.load(path)
    tokens = kept["validation"]
    there = (len(tokens) - 1) // SEQ_LEN
    taken = np.linspace(0, there, min(there, held_out // SEQ_LEN), endpoint=False).astype(np.int64)
    rows = tokens[taken[:, None] * SEQ_LEN + np.arange(SEQ_LEN + 1)].astype(np.int64)
    return Text(kept["train"], rows[:, :-1], rows[:, 1:])


class Size:
    """One size in training. It is kept, so that larger budgets go on where smaller ones branched off."""

    def __init__(self, plan: Plan, text: Any, options: argparse.Namespace) -> None:
        self.plan, self.options = plan, options
        self.ends = list(plan.ends)  # not yet trained
        self.track = self._track(text)
        try:
            self.track.advance_to(2)
        except Exception:  # some operation cannot be captured: one by one then
            print(f"{plan.name} {plan.spec} is not captured:\n{traceback.format_exc()[-800:]}", flush=True)
            self.track = self._track(text)
            self.track._stepper.captured = False
            self.track.advance_to(2)
        began = time.perf_counter()
        self.track.advance_to(12)
        self.speed = (time.perf_counter() - began) / 10  # seconds per step

    def _track(self, text: Any) -> Any:
        from plait.model.architecture import architecture
        from plait.training.recipe import Recipe
        from plait.training.track import Replica, Track, track_recipe

        recipe = track_recipe(Recipe(batch=self.options.batch, seq_len=SEQ_LEN), WARMUP)
        arch, replica = architecture(self.plan.spec), Replica(self.plan.lr, 0)
        return Track(arch, [replica], [text], recipe, device=self.options.device, compiled=False)

    def train(self, most: float, out: Path) -> None:
        """All budgets up to `most` that are not yet trained and fit into the time."""
        while self.ends and self.ends[0][0] <= most:
            flops, steps = self.ends[0]
            if time.time() + 1.1 * self.speed * (steps - self.track.step) > self.options.until:
                print(f"{self.plan.name} {self.plan.spec[:8]} at {flops:.0e}: {steps} steps do not fit", flush=True)
                break
            began, first = time.perf_counter(), self.track.step
            loss = float(self.track.annealed(steps, max(1, round(DECAY * steps))).mean())
            took = time.perf_counter() - began
            self.speed = took / (steps - first)
            self.ends.pop(0)
            self._write(out, flops, steps, loss, took)

    def _write(self, out: Path, flops: float, steps: int, loss: float, took: float) -> None:
        from plait.model.cost import model_cost
        from plait.scaling.sizes import attention_share

        plan, arch = self.plan, self.track.arch
        cost, tokens = model_cost(arch, seq=SEQ_LEN), steps * self.track.tokens_per_step
        values = (
            plan.name, tokens * plan.token_flops, cost.active_params, tokens, loss,
            cost.fixed_state + cost.kv_cache, attention_share(arch), tokens // steps, steps, plan.lr, flops,
            256, "python sources", round(took, 2), plan.spec,
        )  # fmt: skip
        with out.open("a", newline="", encoding="utf-8") as file:
            csv.writer(file).writerow(values)
        print(f"{plan.name:20s} {plan.spec[:6]} {flops:.0e} {steps:6d} steps loss {loss:.4f} {took:6.1f} s", flush=True)


def work(number: int, queues: Any, options: argparse.Namespace, retry: Plan | None = None) -> None:
    """Budget after budget: the smaller two of the first queue's sizes, then the third; the second queue's sizes, which
    only one budget has; the largest as far as time allows, the shortest trainings first. `retry`: a size at which a
    worker has failed; it is trained with plain operations."""
    import torch

    torch.set_num_threads(1)
    text, out = text_of(options.text, options.held_out), options.out / f"rows-{number}.csv"
    failed = options.out / f"failed-{number}"
    kept: list[Size] = []
    _, second, third, largest = (flops / options.shrink for flops in sorted(GROUPS))
    if retry is not None:
        with told(retry, failed, "d="):
            Size(retry, text, options).train(third, out)
    for queue, most in zip(queues, (second, third), strict=True):
        while (plan := queue.get()) is not None and time.time() < options.until:
            with told(plan, failed, options.plain):
                kept.append(Size(plan, text, options))
                kept[-1].train(most, out)
        for size in kept:
            with told(size.plan, failed, options.plain):
                size.train(third, out)
    for size in sorted(kept, key=lambda one: one.speed * one.plan.ends[-1][1]):
        with told(size.plan, failed, options.plain):
            size.train(largest, out)


@contextmanager
def told(plan: Plan, failed: Path, plain: str) -> Iterator[None]:
    """What goes wrong with one size is printed, and the others go on; after an error of the device in a new process.
    Specs that hold the word `plain` are trained without kernels of their own."""
    from plait.ops.paths import plain_ops

    try:
        with plain_ops() if plain and plain in plan.spec else nullcontext():
            yield
    except Exception:
        what = traceback.format_exc()
        print(f"{plan.name} {plan.spec} failed:\n{what[-2000:]}", flush=True)
        if "CUDA error" in what:
            failed.write_bytes(pickle.dumps(plan))
            os._exit(1)


def run(options: argparse.Namespace) -> None:
    options.until = time.time() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    options.text = options.out / "text.npz"
    train, validation = python_sources()
    np.savez(options.text, train=train[: options.most_text], validation=validation)
    print(f"{len(train):,} bytes to train on, {len(validation):,} held out", flush=True)
    context = multiprocessing.get_context("spawn")
    queues = context.Queue(), context.Queue()
    for plan in sorted(plans(options), key=lambda plan: -guess(plan)):
        queues[len(plan.ends) == 1].put(plan)
    for _ in range(2 * options.workers):
        for queue in queues:
            queue.put(None)
    workers: list[Any] = []
    for number in range(options.workers):
        workers.append(context.Process(target=work, args=(number, queues, options)))
        workers[-1].start()
    for worker in workers:  # as far as there are places for new ones in the list
        worker.join()
        if worker.exitcode and len(workers) < 2 * options.workers:
            failed = options.out / f"failed-{workers.index(worker)}"
            retry = pickle.loads(failed.read_bytes()) if failed.exists() else None
            workers.append(context.Process(target=work, args=(len(workers), queues, options, retry)))
            workers[-1].start()
    options.text.unlink()
    print(f"all done after {time.time() - options.until + options.seconds:.0f} s", flush=True)


def check(options: argparse.Namespace) -> None:
    """A captured step does what the same step does one operation after the other: losses after some of each."""
    from plait.model.architecture import architecture
    from plait.training.recipe import Recipe
    from plait.training.track import Replica, Text, Track, track_recipe

    drawn = np.random.default_rng(0).integers(0, 256, 2**16)
    rows = drawn[: 16 * (SEQ_LEN + 1)].reshape(16, -1)
    text = Text(drawn.astype(np.uint8), rows[:, :-1], rows[:, 1:])
    recipe = track_recipe(Recipe(batch=8, seq_len=SEQ_LEN), 4)
    for name, (body, rate) in ARCHITECTURES.items():
        arch = architecture("d=64 vocab=256 tie=true | " + body.format(gdn=GDN, heads=2))
        found = []
        for captured in (True, False):
            track = Track(arch, [Replica(rate, 0)], [text], recipe, device=options.device, compiled=False)
            track._stepper.captured &= captured
            found.append([float(track.advance_to(step)[0]) for step in range(1, 9)])
        gap = max(abs(a - b) for a, b in zip(*found, strict=True))
        print(f"captured against not, {name}: losses {found[0][0]:.4f} … {found[0][-1]:.4f}, gap {gap:.1e}", flush=True)


def join(options: argparse.Namespace) -> None:
    rows = [
        row for path in sorted(options.folder.glob("rows-*.csv")) for row in csv.reader(path.open(encoding="utf-8"))
    ]
    order = list(ARCHITECTURES)
    rows.sort(key=lambda row: (order.index(row[0]), float(row[10]), float(row[2])))
    with options.out.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file, lineterminator="\n").writerows([COLUMNS, *rows])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("-o", "--out", type=Path, required=True)
    running.add_argument("--device", default="cuda")
    running.add_argument("--workers", type=int, default=8)
    running.add_argument("--seconds", type=float, default=255)
    running.add_argument("--batch", type=int, default=BATCH)
    running.add_argument("--shrink", type=float, default=1.0, help="divide all budgets, for a rehearsal")
    running.add_argument("--plain", default="", help="a mixer that is trained without its own kernels")
    running.add_argument("--held-out", type=int, default=HELD_OUT, help="bytes that are scored")
    running.add_argument("--most-text", type=int, default=2**27, help="bytes")
    checking = verbs.add_parser("check")
    checking.add_argument("--device", default="cuda")
    joining = verbs.add_parser("join")
    joining.add_argument("folder", type=Path)
    joining.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    {"run": run, "check": check, "join": join}[options.verb](options)


if __name__ == "__main__":
    main()
