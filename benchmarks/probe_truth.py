"""The probe's tasks on the architectures of the truth table, at the table's own shapes: do probe
scores predict validation losses?

    python benchmarks/probe_truth.py run TRUTH.json -o FOLDER [--device cuda] [--workers 6] [--only attn gla]
    python benchmarks/probe_truth.py join FOLDER -o benchmarks/results/DATE-probe-truth.json

Four of the six tasks (compression trains an encoder, a different model; memorization is solved by all), at the
quick protocol's difficulty, two seeds and two rates each, all of one architecture as one fleet: sequences are padded
to one length and share one vocabulary. The step is captured as a CUDA graph but not compiled, which would take
longer than the training. Architectures that are finished in FOLDER are not trained again. `benchmarks/verdict.py`
compares the accuracies with the table.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
import traceback
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from truth import write

TASKS = (
    "in-context-recall",
    "fuzzy-in-context-recall",
    "noisy-in-context-recall",
    "selective-copying",
)
SEEDS, RATES = (0, 1), (1e-3, 3e-3)
STEPS, BATCH, TEST, TRAIN = 300, 32, 256, 9600
INIT = 0.08  # with scaled embeddings: see the quick protocol


@lru_cache
def data_sets() -> tuple[list[Any], int]:
    """Splits that hold every task and seed, (tasks · seeds, examples, length), and their vocabulary."""
    import torch

    from plait.model.language_model import IGNORE
    from plait.probing.protocol import QUICK
    from plait.tasks import make_data
    from plait.tasks.task import load_task
    from plait.training.ensemble import Split

    found: list[list[Any]] = [[], [], []]
    settings = []
    for name in TASKS:
        task = load_task(name).with_settings({key: str(value) for key, value in QUICK[name].settings.items()})
        task = replace(task, train_size=TRAIN)
        settings.append(task)
        for seed in SEEDS:
            data = make_data(task, seed=seed)
            for place, part in enumerate((data.train, data.validation, data.test)):
                found[place].append((part.inputs_NT, part.targets_NT))
    longest = max(inputs_NT.shape[1] for inputs_NT, _ in found[0])
    splits = []
    for parts in found:
        count = min(TEST if parts is not found[0] else TRAIN, *(len(inputs_NT) for inputs_NT, _ in parts))
        inputs = np.zeros((len(parts), count, longest), np.int64)
        targets = np.full((len(parts), count, longest), IGNORE, np.int64)
        for place, (inputs_NT, targets_NT) in enumerate(parts):
            inputs[place, :, : inputs_NT.shape[1]] = inputs_NT[:count]
            targets[place, :, : targets_NT.shape[1]] = targets_NT[:count]
        splits.append(Split(torch.from_numpy(inputs), torch.from_numpy(targets)))
    return splits, max(task.model_vocab for task in settings)


def probe(name: str, spec: str, options: argparse.Namespace) -> None:
    from plait.model.architecture import Architecture, architecture
    from plait.training.ensemble import Fleet
    from plait.training.ensemble_plan import Plan, Replica

    began = time.perf_counter()
    splits, vocab = data_sets()
    given = architecture(spec)
    arch = Architecture(replace(given.header, vocab=vocab, init=INIT, embed_scale=True), given.layers)
    cells = [(task, seed, lr) for task in range(len(TASKS)) for seed in SEEDS for lr in RATES]
    members = [Replica(lr, 0.0, seed, task * len(SEEDS) + SEEDS.index(seed)) for task, seed, lr in cells]
    plan = Plan(steps=options.steps, batch=BATCH, eval_every=options.steps, solved=2.0)  # nobody stops
    fleet = Fleet(arch, members, plan, *splits, device=options.device)
    fleet.run()
    rows = [
        {"task": TASKS[task], "seed": seed, "lr": lr, "accuracy": (record.test or (0.0, 0.0))[0]}
        for (task, seed, lr), record in zip(cells, fleet.records, strict=True)
    ]
    seconds = time.perf_counter() - began
    write(options.out / f"{name}.json", {"name": name, "spec": spec, "runs": rows, "seconds": seconds, "done": True})
    means = {
        t: np.mean([max(r["accuracy"] for r in rows if r["task"] == t and r["seed"] == s) for s in SEEDS])
        for t in TASKS
    }
    print(f"{name}: {seconds:.0f} s", " ".join(f"{t} {m:.2f}" for t, m in means.items()), flush=True)


def work(job: tuple[str, str, argparse.Namespace]) -> None:
    import torch

    from plait.training import ensemble
    from plait.training.ensemble_step import Stepper

    torch.set_num_threads(1)
    ensemble.Stepper = partial(Stepper, compiled=False)  # captured as it is
    try:
        probe(*job)
    except Exception:
        print(f"{job[0]} failed:\n{traceback.format_exc()[-1500:]}", flush=True)


def run(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    rows = json.loads(options.truth.read_text(encoding="utf-8"))["architectures"]
    jobs = [
        (row["name"], row["spec"], options)
        for row in rows
        if (not options.only or row["name"] in options.only) and not (options.out / f"{row['name']}.json").exists()
    ]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for _ in pool.imap_unordered(work, jobs, chunksize=1):
            pass


def join(options: argparse.Namespace) -> None:
    found = [json.loads(path.read_text()) for path in sorted(options.folder.glob("*.json"))]
    about = {"machine": options.machine, "steps": STEPS, "batch": BATCH, "rates": RATES, "train_examples": TRAIN}
    lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in found)
    options.out.write_text(f'{{"provenance":{json.dumps(about)},\n"architectures":[\n{lines}\n]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("truth", type=Path)
    running.add_argument("-o", "--out", type=Path, required=True)
    running.add_argument("--device", default="cuda")
    running.add_argument("--workers", type=int, default=6)
    running.add_argument("--steps", type=int, default=STEPS)
    running.add_argument("--only", nargs="*", default=[])
    joining = verbs.add_parser("join")
    joining.add_argument("folder", type=Path)
    joining.add_argument("--machine", default="")
    joining.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    {"run": run, "join": join}[options.verb](options)


if __name__ == "__main__":
    main()
