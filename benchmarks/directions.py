"""Do the papers' findings hold in direction at a small scale? Trains models on real text and reports the results.

    python benchmarks/directions.py --group fox --device cuda --steps 2000 -o results.json

* FoX: FoX (Pro) < FoX (LLaMA) < Transformer (LLaMA) in loss at equal size; data-dependent gates beat data-independent
  and fixed ones; beyond its training length FoX keeps its loss where the rotary Transformer fails.
* PAR: (sfff)x6 (f)x8 reaches Transformer-XL's (sf)x16, six attention blocks against sixteen.

All models of a group see the same batches for the same number of steps; every seed is a run of its own.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import plait
from plait.data import open_corpus
from plait.model import model_cost
from plait.model.language_model import LanguageModel
from plait.training.distributed import Processes
from plait.training.recipe import Budget, Job, Recipe, fitted
from plait.training.trainer import Trainer

FOX_MLP = "swiglu[inner={inner}]"
FOX = {
    "transformer-llama": "attn[heads=8,theta=500000.0]",
    "fox-fixed": "attn[heads=8,pos=none,forget=fixed]",
    "fox-bias-only": "attn[heads=8,pos=none,forget=bias-only]",
    "fox-llama": "fox[heads=8]",
    "fox-pro": "fox[heads=8,qk_norm=per-head,out_gate=true,out_norm=true,kv_shift=true]",
}
PAR = {
    "transformer-xl (sf)x16": "(xl-attn[heads=4] mlp[inner=1024])x16",
    "par (sfff)x6 (f)x8": "(xl-attn[heads=4] (mlp[inner=1024])x3)x6 (mlp[inner=1024])x8",
}


def spec_of(group: str, name: str, d: int, layers: int) -> str:
    if group == "par":
        return f"d=256 norm=layer tie=true | {PAR[name]}"
    # Pro pays for its output gate with a narrower MLP, as in the paper.
    inner = 64 * math.ceil(d * (3.5 if name == "fox-pro" else 4.0) * 2 / 3 / 64)
    return f"d={d} | ({FOX[name]} {FOX_MLP.format(inner=inner)})x{layers}"


def train(
    spec: str, data: str, recipe: Recipe, steps: int, seed: int, device: str, compiled: bool
) -> tuple[Trainer, dict[str, Any]]:
    corpus = open_corpus(data)
    precision = "bf16" if device == "cuda" else "fp32"
    job = Job(fitted(spec, corpus), corpus, recipe, Budget(steps=steps), seed, precision, validation_tokens=2**20)
    trainer = Trainer(job, steps, Processes(0, 1, torch.device(device)), compiled=compiled)
    losses = [trainer.advance().loss for _ in range(5)]
    started = time.perf_counter()
    while trainer.step < steps:
        losses.append(trainer.advance().loss)
    seconds = time.perf_counter() - started
    result = {
        "params": model_cost(job.arch, seq=recipe.seq_len).total_params,
        "validation": trainer.validation_loss(),
        "train": float(np.mean(losses[-50:])),
        "steps": steps,
        "tokens_per_second": (steps - 5) * job.tokens_per_step / seconds,
    }
    return trainer, result


@torch.no_grad()
def by_position(trainer: Trainer, length: int, windows: int) -> list[float]:
    """Mean loss in nats by position, in 64 equal parts of `length`, over held-out windows."""
    model = trainer.model.eval()
    assert isinstance(model, LanguageModel)
    tokens = torch.from_numpy(
        np.asarray(trainer.job.corpus.tokens("validation")[: windows * length + 1]).astype(np.int64)
    )
    rows, targets = tokens[:-1].reshape(windows, length), tokens[1:].reshape(windows, length)
    total = torch.zeros(length, dtype=torch.float64)
    for x, y in zip(rows.split(4), targets.split(4), strict=True):
        with trainer.autocast:
            scores = model(x.to(trainer.dist.device)).float()
        nll = torch.nn.functional.cross_entropy(scores.flatten(0, 1), y.flatten().to(scores.device), reduction="none")
        total += nll.reshape(y.shape).double().sum(0).cpu()
    return (total / windows).reshape(64, -1).mean(1).tolist()


def recipe_of(given: argparse.Namespace) -> Recipe:
    memory = given.length if given.group == "par" else 0
    return Recipe(batch=given.batch, seq_len=given.length, lr=given.lr, warmup=0.1, memory=memory)


def main() -> None:
    asked = argparse.ArgumentParser()
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--group", choices=["fox", "par"], required=True)
    asked.add_argument("--only", default="")
    asked.add_argument("--data", default="builtin:stdlib")
    asked.add_argument("--steps", type=int, default=20)
    asked.add_argument("--seconds", type=float, help="instead of --steps: so long for the group's slowest model")
    asked.add_argument("--seeds", type=int, default=1)
    asked.add_argument("--d", type=int, default=512)
    asked.add_argument("--layers", type=int, default=6)
    asked.add_argument("--batch", type=int, default=32)
    asked.add_argument("--length", type=int, default=1024)
    asked.add_argument("--lr", type=float, default=2e-3)
    asked.add_argument("--compile", action="store_true")
    asked.add_argument("-o", "--output", type=Path)
    given = asked.parse_args()
    names = [name for name in (FOX if given.group == "fox" else PAR) if given.only in name]
    found: dict[str, Any] = {
        "plait": plait.__version__, "torch": torch.__version__,
        "arguments": {name: str(value) for name, value in vars(given).items()},
        "machine": torch.cuda.get_device_name() if given.device == "cuda" else "cpu", "runs": [],
    }  # fmt: skip
    steps = given.steps
    if given.seconds:
        tried = train(spec_of(given.group, names[-1 if given.group == "fox" else 0], given.d, given.layers), given.data,
                      recipe_of(given), 30, 0, given.device, given.compile)[1]  # fmt: skip
        steps = round(given.seconds * tried["tokens_per_second"] / (given.batch * given.length))
        print(f"{steps} steps each", flush=True)
    for seed in range(given.seeds):
        for name in names:
            recipe = recipe_of(given)
            spec = spec_of(given.group, name, given.d, given.layers)
            begun = time.perf_counter()
            trainer, result = train(spec, given.data, recipe, steps, seed, given.device, given.compile)
            row = {"name": name, "seed": seed, "spec": spec, **result}
            if given.group == "fox":
                row["by_position"] = by_position(trainer, 8 * given.length, 32)
            row["seconds"] = time.perf_counter() - begun
            found["runs"].append(row)
            shown = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items() if k != "spec"}
            if "by_position" in shown:
                shown["by_position"] = [round(v, 3) for v in row["by_position"][::8]]
            print(shown, flush=True)
            if given.output:
                given.output.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
