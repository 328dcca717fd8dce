"""State tracking on one core: which mixers keep a parity and follow the group S3 beyond the length of training.

    python benchmarks/tracking.py [--steps 400] [--seeds 3] [--only parity] [--out FILE.md]

One layer of a mixer and a SwiGLU at width 32, trained on sequences of 32 bits (parity) or 16 elements (S3) with the
state asked for after every token, batch 32, AdamW at 1e-2 falling to 0 along a cosine. Scored in the second half of new
sequences 1, 2, 4 and 8 times as long: at 2 and more every scored position lies beyond training. What is expected:
Grazzi et al. 2024, arXiv:2411.12537 (parity needs a negative eigenvalue); Siems et al. 2025, arXiv:2502.10297 (S3 in
one layer needs two steps).
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np
import torch

from plait.analysis.intervals import estimate
from plait.model.architecture import architecture
from plait.records import provenance_of
from plait.tasks import Examples, baseline, chance, draw, make_data
from plait.training.ensemble import Fleet, Member, Plan, Split

LENGTHS = (1, 2, 4, 8)
TASKS = {"parity": {"length": "32"}, "word-problem": {"length": "16", "group": "S3"}}
MIXERS = {
    "parity": (
        "deltanet[head_dim=16,neg_eigval]",
        "deltanet[head_dim=16]",
        "mamba2[state=16,head_dim=16]",
        "mamba3[state=16,head_dim=16]",
        "rwkv7[head_dim=16,decay_rank=8,rate_rank=8,gate_rank=8,neg_eigval]",
        "rwkv7[head_dim=16,decay_rank=8,rate_rank=8,gate_rank=8]",
        "attn[heads=2]",
    ),
    "word-problem": (
        "deltaproduct[head_dim=16,steps=2]",
        "deltanet[head_dim=16,neg_eigval]",
    ),
}


def split(examples: list[Examples]) -> Split:
    inputs, targets = (np.stack([getattr(e, part) for e in examples]) for part in ("inputs_NT", "targets_NT"))
    return Split(torch.from_numpy(inputs), torch.from_numpy(targets))


def run(name: str, mixer: str, steps: int, seeds: int) -> dict[str, list[float]]:
    """Accuracies by length, one per seed."""
    task = baseline(name).with_settings(TASKS[name])
    data = [make_data(task, seed, evaluation=128) for seed in range(seeds)]
    longer = {str(n): split([draw(task.longer(n), seed, "test", 128) for seed in range(seeds)]) for n in LENGTHS[1:]}
    arch = architecture(f"d=32 vocab={task.model_vocab} init=0.15 embed_scale=true | {mixer} swiglu[inner=64]")
    fleet = Fleet(
        arch,
        [Member(1e-2, 0.0, seed, seed) for seed in range(seeds)],
        Plan(steps, 32, steps // 4, solved=2.0),
        *(split([one.split(part) for one in data]) for part in ("train", "validation", "test")),
        others=longer,
    )
    records = fleet.run()
    found = {"1": [record.test[0] if record.test else 0.0 for record in records]}
    return {**found, **{n: [record.others[n] for record in records] for n in longer}}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--steps", type=int, default=400)
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--only", choices=TASKS)
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    torch.set_num_threads(1)
    started, began, rows = time.perf_counter(), time.time(), []
    for name in [given.only] if given.only else TASKS:
        task = baseline(name).with_settings(TASKS[name])
        level = chance(make_data(task, 0, evaluation=128).test)
        for mixer in MIXERS[name]:
            before = time.perf_counter()
            found = run(name, mixer, given.steps, given.seeds)
            at_4 = estimate(np.array(found["4"]))
            ends = "" if at_4.interval is None else "{:.2f} to {:.2f}".format(*at_4.interval)
            means = " | ".join(f"{np.mean(values):.3f}" for values in found.values())
            seeds = ", ".join(f"{value:.3f}" for value in found["4"])
            seconds = time.perf_counter() - before
            rows.append(f"| {name} | `{mixer}` | {means} | {seeds} | {ends} | {level:.2f} | {seconds:.0f} |")
            print(rows[-1], flush=True)
            if given.out:
                known = provenance_of(began, time.perf_counter() - started)
                given.out.write_text(_page(given, rows, known), encoding="utf-8")


def _page(given: argparse.Namespace, rows: list[str], known: dict[str, object]) -> str:
    table, about = "\n".join(rows), str(__doc__).split("\n\n")[2].strip()
    return f"""# State tracking, one layer, {given.steps} steps, {given.seeds} seeds

`python benchmarks/tracking.py --steps {given.steps} --seeds {given.seeds}`: {about}

| task | mixer | 1× | 2× | 4× | 8× | 4×, by seed | 4×, 95 % | chance | seconds |
|---|---|---|---|---|---|---|---|---|---|
{table}

{known}
"""


if __name__ == "__main__":
    main()
