"""The truth table: losses of many fully trained architectures of one size, at every budget.

    python benchmarks/truth.py pack .carry/texts.npz --text stdlib=builtin:stdlib --text english=FILE.txt
    python benchmarks/truth.py run .carry/texts.npz -o FOLDER [--device cuda] [--workers 8] [--only attn gla]
    python benchmarks/truth.py join FOLDER -o benchmarks/results/DATE-truth.json

Every mixer, stripes from 1:1 to 7:1, both orders, with and without short convolutions, two shapes, all with the same
number of parameters in their layers. Each is a track (`plait.training.track`) of some seeds on some texts, at the rate
that was best in a search on the first text; from it branch annealed trainings at budgets that double from 0.26 to
33.6 million tokens. `benchmarks/verdict.py` compares plait's verdicts with the table. To share a GPU among several
workers, start `nvidia-cuda-mps-control -d` first. Trainings in FOLDER are not repeated, and interrupted ones resume. To
add seeds and texts to an existing table:

    python benchmarks/truth.py run TEXTS.npz -o FOLDER --table TABLE.json --seeds stdlib=1,2,5,6 docs=1,2
    python benchmarks/truth.py join FOLDER --table TABLE.json --about TEXTS.json -o NEW.json
"""

from __future__ import annotations

import argparse
import itertools
import json
import multiprocessing
import os
import platform
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np


class Job(NamedTuple):
    """`rate`: None where it must be searched. `seeds`: by text."""

    name: str
    shape: str
    arch: Any
    rate: float | None
    seeds: dict[str, list[int]]


ATTN, FOX, GLA, M2 = "attn[heads=4]", "fox[heads=4]", "gla[heads=4]", "mamba2[head_dim=32,state=64]"
DELTA, GDN = "deltanet[head_dim=32]", "gated-deltanet[head_dim=32]"
WIDE = {  # the slowest to compile first
    "gdn-fox": f"({GDN} swiglu {FOX} swiglu)x2",
    "rwkv6": "(rwkv6[head_dim=32,decay_rank=32,mix_rank=16] swiglu)x4",
    "gdn": f"({GDN} swiglu)x4",
    "mamba2": f"({M2})x7",
    "mamba": "(mamba)x7",
    "deltanet": f"({DELTA} swiglu)x4",
    "gla": f"({GLA} swiglu)x4",
    "gdn3-attn": f"({GDN} swiglu)x3 {ATTN} swiglu",
    "mamba2-mlp": f"({M2} swiglu)x4",
    "hgrn2": "(hgrn2[head_dim=32] swiglu)x4",
    "gdn-no-conv": "(gated-deltanet[head_dim=32,conv=1] swiglu)x4",
    "mamba2x3-attn": f"({M2} swiglu)x3 {ATTN} swiglu",
    "attn-mamba2x3": f"{ATTN} swiglu ({M2} swiglu)x3",
    "gdn-attn": f"({GDN} swiglu {ATTN} swiglu)x2",
    "mamba2-attn": f"({M2} swiglu {ATTN} swiglu)x2",
    "gla-attn": f"({GLA} swiglu {ATTN} swiglu)x2",
    "attn-gla": f"({ATTN} swiglu {GLA} swiglu)x2",
    "deltanet-no-conv": "(deltanet[head_dim=32,conv=1] swiglu)x4",
    "linear": "(linear[heads=4] swiglu)x4",
    "hyena": "(hyena swiglu)x4",
    "hyena-attn": f"(hyena swiglu {ATTN} swiglu)x2",
    "fox": f"({FOX} swiglu)x4",
    "attn": f"({ATTN} swiglu)x4",
    "attn-shift": "(attn[heads=4,kv_shift=true] swiglu)x4",
    "attn-window": "(attn[heads=4,window=64] swiglu)x4",
    "mh-hyena": "(mh-hyena[heads=16] swiglu)x4",
    "hyena-experts": "(hyena-experts swiglu)x4",
}
DEEP = {
    "deep-gdn7-attn": f"({GDN} swiglu)x7 {ATTN} swiglu",
    "deep-mamba2x7-attn": f"({M2} swiglu)x7 {ATTN} swiglu",
    "deep-gla3-attn": f"(({GLA} swiglu)x3 {ATTN} swiglu)x2",
    "deep-attn": f"({ATTN} swiglu)x8",
}
HEADERS = {"wide": "d=128 vocab=256 tie=true", "deep": "d=96 vocab=256 tie=true"}
SIZE = "attn"  # whose parameters all have
SEEDS, RATES, RATE_SEED = ("stdlib=1,2", "english=1,2"), (1e-3, 2e-3, 4e-3, 8e-3), 101
DECAY, WARMUP = 0.2, 10
BATCH, SEQ_LEN, HELD_OUT = 32, 256, 2**17
FIRST, DOUBLINGS = 32, 7  # steps of the smallest budget; the largest is 2^7 as long
RATE_STEPS = (128, 512)  # budgets of the search for the rate


def architectures(only: list[str]) -> dict[str, tuple[str, Any]]:
    """Shape and architecture by name, all with the same number of parameters in their layers as near as can be."""
    from plait.core.errors import UserError
    from plait.model.architecture import architecture
    from plait.model.cost import decoder_params
    from plait.model.resize import match

    target = decoder_params(architecture(f"{HEADERS['wide']} | {WIDE[SIZE]}"))
    bodies = [("deep", name, body) for name, body in DEEP.items()] + [("wide", n, body) for n, body in WIDE.items()]
    found: dict[str, tuple[str, Any]] = {}
    for shape, name, body in bodies:
        if only and name not in only:
            continue
        arch = architecture(f"{HEADERS[shape]} | {body}")
        with suppress(UserError):  # nothing to vary: mamba2 alone, within 6 %
            arch = match(arch, params=target, tolerance=0.02)
        found[name] = (shape, arch)
    return found


def packed(path: Path) -> list[Any]:
    from plait.training.track import Text

    kept = np.load(path)
    names = dict.fromkeys(key.split("/")[0] for key in kept.files)
    return [
        (name, Text.cut(name, kept[f"{name}/train"], kept[f"{name}/validation"], SEQ_LEN, HELD_OUT)) for name in names
    ]


class Training:
    """One architecture with every seed on every text that the table lacks, all as one track: the search for its rate,
    unless the table knows it, then every budget. What it has found and where it is are kept after every stop of the
    trunk, so that a later sitting goes on from there."""

    def __init__(self, job: Job, options: argparse.Namespace) -> None:
        from plait.training.recipe import Recipe
        from plait.training.track import Replica, Track, track_recipe

        self.job, self.options = job, options
        texts = packed(options.texts)
        self.texts = [name for name, _ in texts]
        wanted = [(text, seed) for text in range(len(texts)) for seed in job.seeds[self.texts[text]]]
        self.replicas = [Replica(job.rate or RATES[0], seed, text) for text, seed in wanted]
        # Before the rate is known as many replicas, so that one compiled step serves the search and the seeds.
        searched = [Replica(RATES[i % len(RATES)], RATE_SEED + i // len(RATES)) for i in range(len(wanted))]
        recipe = track_recipe(Recipe(batch=options.batch, seq_len=SEQ_LEN), WARMUP)
        self.track = Track(
            job.arch, self.replicas if job.rate else searched, [text for _, text in texts], recipe,
            device=options.device,
        )  # fmt: skip

    def run(self) -> None:
        began = time.perf_counter()
        found = self.restored() or self.begun()
        token, runs = self.track.tokens_per_step, found["runs"]
        for steps in (FIRST * 2**doubling for doubling in range(DOUBLINGS + 1)):
            if steps > self.options.most:
                break
            decay = max(1, round(DECAY * steps))
            for trunk in (round(steps / 2**0.5 * (1 - DECAY)), steps - decay):
                if len(runs[0]["trunk"]) and runs[0]["trunk"][-1][0] >= trunk * token:
                    continue
                self.track.advance_to(trunk)
                for row, loss in zip(runs, self.track.score().mean(1), strict=True):
                    row["trunk"].append([trunk * token, float(loss)])
                self.keep(found)
            if len(runs[0]["annealed"]) and runs[0]["annealed"][-1][0] >= steps * token:
                continue
            for row, loss in zip(runs, self.track.annealed(steps, decay).mean(1), strict=True):
                row["annealed"].append([steps * token, float(loss)])
            write(self.options.out / f"{self.job.name}.json", found)
        write(self.options.out / f"{self.job.name}.json", {**found, "done": True})
        print(f"{self.job.name}: lr {runs[0]['lr']:g}, {time.perf_counter() - began:.0f} s", flush=True)

    def begun(self) -> dict[str, Any]:
        """The rate is the best of a search on the first text."""
        rate, rates = self.job.rate, list[dict[str, Any]]()
        if rate is None:
            losses: dict[float, list[list[float]]] = {lr: [] for lr in RATES}
            for steps in (min(s, self.options.most) for s in RATE_STEPS):
                loss_M = self.track.annealed(steps, max(1, round(DECAY * steps))).mean(1)
                for lr in RATES:
                    same = [x for x, r in zip(loss_M, self.track.replicas, strict=True) if r.lr == lr]
                    losses[lr].append([steps * self.track.tokens_per_step, float(np.mean(same))])
            rates = [{"architecture": self.job.name, "text": self.texts[0], "lr": lr, "annealed": losses[lr]}
                     for lr in RATES]  # fmt: skip
            rate = min((lr for lr in RATES if np.isfinite(losses[lr][-1][1])), key=lambda lr: losses[lr][-1][1])
            self.track.restart([replace(replica, lr=rate) for replica in self.replicas])
        runs = [
            {"architecture": self.job.name, "text": self.texts[r.text], "seed": r.seed, "lr": rate, "trunk": [],
             "annealed": []}
            for r in self.replicas
        ]  # fmt: skip
        about = {**described(self.job.name, self.job.shape, self.job.arch), "lr": rate}
        return {"architecture": about, "rates": rates, "runs": runs, "done": False}

    @property
    def state(self) -> Path:
        return Path(self.options.out) / f"{self.job.name}.state"

    def keep(self, found: dict[str, Any]) -> None:
        import torch

        states = [self.track.state(m) for m in range(len(self.replicas))]
        aside = self.state.with_suffix(".part")
        torch.save({"found": found, "states": states}, aside)
        os.replace(aside, self.state)

    def restored(self) -> dict[str, Any] | None:
        import torch

        if not self.state.exists():
            return None
        kept = torch.load(self.state, map_location=self.options.device)
        found: dict[str, Any] = kept["found"]
        if self.job.rate is None:
            self.track.restart([replace(replica, lr=found["runs"][0]["lr"]) for replica in self.replicas])
        self.track.restore(kept["states"])
        return found


def described(name: str, shape: str, arch: Any) -> dict[str, Any]:
    from plait.model.cost import model_cost

    cost = model_cost(arch, seq=SEQ_LEN)
    return {
        "name": name, "family": name.split("-")[0], "shape": shape, "spec": arch.text, "params": cost.decoder_params,
        "flops_per_token": cost.flops / SEQ_LEN, "state": cost.fixed_state, "kv_cache": cost.kv_cache,
    }  # fmt: skip


def write(path: Path, found: dict[str, Any]) -> None:
    aside = path.with_suffix(".part")
    aside.write_text(json.dumps(found))
    os.replace(aside, path)


def work(queue: Any, options: argparse.Namespace) -> None:
    import torch

    torch.set_num_threads(1)
    while (job := queue.get()) is not None:
        attempt(job, options)


def attempt(job: Job, options: argparse.Namespace) -> None:
    try:
        Training(job, options).run()
    except Exception:
        print(f"{job.name} failed:\n{traceback.format_exc()[-2500:]}", flush=True)


def jobs(options: argparse.Namespace) -> list[Job]:
    """What the table lacks, slow and fast ones in turn, so that some train while others are compiled; last what has no
    rate."""
    known: dict[str, Any] = {"architectures": [], "runs": []}
    if options.table:
        known = json.loads(options.table.read_text(encoding="utf-8"))
    rates = {row["name"]: row["lr"] for row in known["architectures"]}
    have = {(run["architecture"], run["text"], run["seed"]) for run in known["runs"]}
    texts = [name for name, _ in packed(options.texts)]
    asked = {text: list(map(int, seeds.split(","))) for text, seeds in (one.split("=") for one in options.seeds)}
    found = []
    for name, (shape, arch) in architectures(options.only).items():
        path = options.out / f"{name}.json"
        if path.exists() and json.loads(path.read_text())["done"]:
            continue
        seeds = {text: [s for s in asked.get(text, ()) if (name, text, s) not in have] for text in texts}
        if any(seeds.values()):
            found.append(Job(name, shape, arch, rates.get(name), seeds))
    half = (len(found) + 1) // 2
    turns = itertools.zip_longest(found[half:][::-1], found[:half])
    return sorted((job for pair in turns for job in pair if job is not None), key=lambda job: job.rate is None)


def run(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    for job in jobs(options):
        queue.put(job)
    workers = [context.Process(target=work, args=(queue, options)) for _ in range(options.workers)]
    for worker in workers:
        queue.put(None)
        worker.start()
    ends = time.monotonic() + options.time
    for worker in workers:
        worker.join(max(0.0, ends - time.monotonic()))
    for worker in workers:
        worker.kill()
    print("out of time" if time.monotonic() >= ends else "all done", flush=True)


def pack(options: argparse.Namespace) -> None:
    from plait.data import open_corpus

    kept: dict[str, np.ndarray] = {}
    about: dict[str, Any] = {}
    for name, corpus in ((name, open_corpus(given)) for name, given in (one.split("=", 1) for one in options.text)):
        kept |= {
            f"{name}/train": np.asarray(corpus.tokens("train"))[: options.tokens].astype(np.uint8),
            f"{name}/validation": np.asarray(corpus.tokens("validation"))[: 2**21].astype(np.uint8),
        }
        about[name] = {**corpus.as_dict(), "name": Path(corpus.name).name, "train_tokens": len(kept[f"{name}/train"])}
    options.texts.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(options.texts, **kept)
    options.texts.with_suffix(".json").write_text(json.dumps(about))


def join(options: argparse.Namespace) -> None:
    found = [json.loads(path.read_text()) for path in sorted(options.folder.glob("*.json"))]
    about = json.loads(options.about.read_text())
    known: dict[str, Any] = {"provenance": {}, "texts": {}, "architectures": [], "runs": [], "rates": []}
    if options.table:
        known = json.loads(options.table.read_text(encoding="utf-8"))
    named = {row["name"]: row for row in known["architectures"]}
    new = [one["architecture"] for one in found if one["architecture"]["name"] not in named]
    table = {
        "provenance": {
            "date": date.today().isoformat(), "machine": options.machine, "python": platform.python_version(),
            "decay": DECAY, "schedule": "wsd", "warmup_steps": WARMUP, "batch": BATCH, "seq_len": SEQ_LEN,
            "held_out_tokens": HELD_OUT, "rates": RATES, "rate_chosen_at_tokens": RATE_STEPS[-1] * BATCH * SEQ_LEN,
        },
        "texts": {**about, **known["texts"]},
        "architectures": [*known["architectures"], *new],
        "runs": [*known["runs"], *(row for one in found for row in one["runs"])],
        "rates": [*known["rates"], *(row for one in found for row in one["rates"])],
    }  # fmt: skip
    options.out.write_text(
        json.dumps(table, indent=None, separators=(",", ":")).replace('{"architecture"', '\n{"architecture"')
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    packing = verbs.add_parser("pack")
    packing.add_argument("texts", type=Path)
    packing.add_argument("--text", action="append", required=True, metavar="NAME=CORPUS")
    packing.add_argument("--tokens", type=int, default=24_000_000, help="of each text at most")
    running = verbs.add_parser("run")
    running.add_argument("texts", type=Path)
    running.add_argument("-o", "--out", type=Path, required=True)
    running.add_argument("--device", default="cuda")
    running.add_argument("--workers", type=int, default=8)
    running.add_argument("--batch", type=int, default=BATCH)
    running.add_argument("--most", type=int, default=FIRST * 2**DOUBLINGS, help="steps of the largest budget")
    running.add_argument("--only", nargs="*", default=[])
    running.add_argument("--table", type=Path, help="what is known: its rates are taken, its trainings not repeated")
    running.add_argument("--seeds", nargs="*", default=list(SEEDS), metavar="TEXT=1,2", help="of every text")
    running.add_argument("--time", type=float, default=1e6, metavar="SECONDS", help="the same command then goes on")
    joining = verbs.add_parser("join")
    joining.add_argument("folder", type=Path)
    joining.add_argument("--about", type=Path, required=True, help="the .json beside the packed texts")
    joining.add_argument("--table", type=Path, help="to be added to")
    joining.add_argument("--machine", default="")
    joining.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    {"pack": pack, "run": run, "join": join}[options.verb](options)


if __name__ == "__main__":
    main()
