"""FoX's 125M training (Table 4) scaled down: FoX (Pro), FoX (LLaMA) and Transformer (LLaMA) on the same text.

    python benchmarks/fox_small.py [--steps 200] [--seeds 2] [--out FILE.md]

The presets `fox-pro-125m`, `fox-llama-125m` and `transformer-llama-125m` with 4 of their 12 layers, 6 heads of 16, a
width of 96 and an inner width of an eighth (about the same number of parameters in all, as in the paper), and
the recipe `fox-125m` with its learning rate, betas, weight decay, clipping and share of warm-up, on the standard
library's sources (bytes). Validation loss in nats per token, paired by seed. What comes out at this size is a
direction, not the paper's number.
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

LAYERS = {
    "fox-pro": "fox[heads=6,kv_shift,out_gate,out_norm,qk_norm=per-head] swiglu[inner=224]",
    "fox-llama": "fox[heads=6] swiglu[inner=256]",
    "transformer-llama": "attn[heads=6,theta=500000.0] swiglu[inner=256]",
}
SMALL = {"batch": 8, "seq_len": 128, "warmup": 512 / 5120}


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--steps", type=int, default=200)
    asked.add_argument("--seeds", type=int, default=2)
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    torch.set_num_threads(1)
    started, began = time.perf_counter(), time.time()
    corpus = open_corpus("builtin:stdlib", "bytes")
    chosen = recipe("fox-125m").recipe.with_values(SMALL)
    losses: dict[str, list[float]] = {name: [] for name in LAYERS}
    params: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as folder, open_store(f"sqlite:///{folder}/runs.db") as store:
        for seed in range(given.seeds):
            for name, layer in LAYERS.items():
                arch = fitted(f"d=96 | ({layer})x4", corpus)
                job = Job(arch, corpus, chosen, Budget(steps=given.steps), seed, validation_tokens=2**13)
                found = fit_alone(job, store, Path(folder))
                losses[name].append(found.loss)
                params[name] = found.params
                print(f"{name} seed {seed}: {found.loss:.3f}", flush=True)
    known = provenance_of(began, time.perf_counter() - started)
    rows = "\n".join(
        f"| {name} | {params[name]:,} | {', '.join(f'{loss:.3f}' for loss in found)} | {statistics.fmean(found):.3f} |"
        for name, found in losses.items()
    )
    text = f"""# FoX's 125M recipe, scaled down

{time.strftime("%Y-%m-%d", time.gmtime())}, plait {known["plait"]}, torch {torch.__version__}, python {known["python"]},
{os.cpu_count()} cores, 1 thread, {time.perf_counter() - started:.0f} s.
`python benchmarks/fox_small.py --steps {given.steps} --seeds {given.seeds}`: recipe `fox-125m` with
{", ".join(f"{key}={value:g}" for key, value in SMALL.items())},
{given.steps} steps, 4 layers of width 96, on builtin:stdlib (bytes).
Validation loss in nats per token by seed.

| model | parameters | loss by seed | mean |
|---|---|---|---|
{rows}
"""
    print(text)
    if given.out:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
