"""The effect of LAMB's trust ratio: `lts-xl-wt103` (Table 2: LAMB, 1e-2) scaled down, with the ratio and without.

    python benchmarks/lamb.py [--steps 200] [--seeds 3] [--out FILE.md]

A small Transformer-XL on the standard library's sources (bytes), with the paper's recipe except for batch, lengths,
dropout and number of steps (the warm-up is the same fraction of them). Without weight decay and trust ratio LAMB is
Adam: `adam` has the same learning rate, betas, epsilon and clipping. Validation loss in nats per token, paired by seed.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from pathlib import Path

import torch

from plait.data import open_corpus
from plait.papers.recipes import recipe
from plait.records import open_store, provenance_of
from plait.training.fit import fit_alone
from plait.training.recipe import Budget, Job, fitted

SPEC = "d=64 tie=true norm=layer | (xl-attn[heads=4] mlp[inner=128])x2"
SMALL = {"batch": 8, "seq_len": 48, "memory": 48, "dropout": 0.0, "warmup": 1000 / 40_000}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--steps", type=int, default=200)
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    torch.set_num_threads(1)
    started, began = time.perf_counter(), time.time()
    corpus = open_corpus("builtin:stdlib", "bytes")
    published = recipe("lts-xl-wt103").recipe.with_values(SMALL)
    losses: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/runs.db") as store:
        for optimizer in ("lamb-xl", "adam"):
            for seed in range(given.seeds):
                chosen = published.with_values({"optimizer": optimizer})
                job = Job(
                    fitted(SPEC, corpus), corpus, chosen, Budget(steps=given.steps), seed, validation_tokens=2**13
                )
                found = fit_alone(job, store, Path(folder)).loss
                losses.setdefault(optimizer, []).append(found)
                print(f"{optimizer} seed {seed}: {found:.3f}", flush=True)
    gaps = [without - with_ for with_, without in zip(losses["lamb-xl"], losses["adam"], strict=True)]
    known = provenance_of(began, time.perf_counter() - started)
    rows = "\n".join(
        f"| {name} | {', '.join(f'{loss:.3f}' for loss in found)} | {statistics.fmean(found):.3f} |"
        for name, found in (
            ("with the trust ratio (`lamb-xl`)", losses["lamb-xl"]),
            ("without (`adam`)", losses["adam"]),
        )
    )
    text = f"""# LAMB with and without its trust ratio

{time.strftime("%Y-%m-%d", time.gmtime())}, plait {known["plait"]}, torch {torch.__version__}, python {known["python"]},
{os.cpu_count()} cores, 1 thread, {time.perf_counter() - started:.0f} s.
`python benchmarks/lamb.py --steps {given.steps} --seeds {given.seeds}`: recipe `lts-xl-wt103` with
{", ".join(f"{key}={value:g}" for key, value in SMALL.items())},
{given.steps} steps of `{SPEC}` on builtin:stdlib (bytes).
Validation loss in nats per token by seed.

| update | loss by seed | mean |
|---|---|---|
{rows}

The ratio is worth {statistics.fmean(gaps):.3f} nats per token (by seed: {", ".join(f"{gap:+.3f}" for gap in gaps)}).
"""
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
