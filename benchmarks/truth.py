"""The truth table: what becomes of many architectures of one size when they are really trained, at every budget.

    python benchmarks/truth.py pack .carry/texts.npz --text stdlib=builtin:stdlib --text english=FILE.txt
    python benchmarks/truth.py run .carry/texts.npz -o FOLDER [--device cuda] [--workers 8] [--only attn gla]
    python benchmarks/truth.py join FOLDER -o benchmarks/results/DATE-truth.json

Every mixer, stripes from 1:1 to 7:1, both orders, with and without short convolutions, two shapes, all with the same
number of parameters in their layers. Each is a track (`plait.training.track`) of two seeds on two texts, at the rate
that was best in a search on the first text; from it branch annealed trainings at budgets that double from 0.26 to
33.6 million tokens. `benchmarks/verdict.py` holds plait's answers against the table. On a GPU several workers share it:
start `nvidia-cuda-mps-control -d` first. An architecture that is finished in FOLDER is not trained again. `run --split`
trains the replicas of an architecture in processes of their own, nothing compiled: what of one architecture takes
longer than there is time for.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import platform
import time
import traceback
from contextlib import suppress
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

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
SEEDS, RATES, RATE_SEED = (1, 2), (1e-3, 2e-3, 4e-3, 8e-3), 101
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


def train(name: str, shape: str, arch: Any, options: argparse.Namespace) -> None:
    """One architecture from the search for its rate to the largest budget; its file is written after every budget."""
    from plait.training.recipe import Recipe
    from plait.training.track import Replica, Track, track_recipe

    texts = packed(options.texts)
    recipe = track_recipe(Recipe(batch=options.batch, seq_len=SEQ_LEN), WARMUP)
    began = time.perf_counter()
    searched = [Replica(lr, RATE_SEED) for lr in RATES]
    track = Track(arch, searched, [text for _, text in texts], recipe, device=options.device)
    token = track.tokens_per_step
    found: dict[str, Any] = {
        "architecture": described(name, shape, arch),
        "rates": [{"architecture": name, "text": texts[0][0], "lr": lr, "annealed": []} for lr in RATES],
        "runs": [], "done": False,
    }  # fmt: skip
    for steps in (min(s, options.most) for s in RATE_STEPS):
        losses = track.annealed(steps, max(1, round(DECAY * steps))).mean(1)
        for row, loss in zip(found["rates"], losses, strict=True):
            row["annealed"].append([steps * token, float(loss)])
    finite = [row for row in found["rates"] if np.isfinite(row["annealed"][-1][1])]
    best = min(finite, key=lambda row: row["annealed"][-1][1])["lr"]
    replicas = [Replica(best, seed, text) for text in range(len(texts)) for seed in SEEDS]
    assert len(replicas) == len(searched), "one compiled step serves the search and the seeds"
    track.restart(replicas)
    searching = time.perf_counter() - began
    found["runs"] = [
        {"architecture": name, "text": texts[r.text][0], "seed": r.seed, "lr": best, "trunk": [], "annealed": []}
        for r in replicas
    ]
    began = time.perf_counter()
    for doubling in range(DOUBLINGS + 1):
        steps = FIRST * 2**doubling
        if steps > options.most:
            break
        for trunk in (round(steps / 2**0.5 * (1 - DECAY)), steps - max(1, round(DECAY * steps))):
            track.advance_to(trunk)
            for row, loss in zip(found["runs"], track.score().mean(1), strict=True):
                row["trunk"].append([trunk * token, float(loss)])
        for row, loss in zip(found["runs"], track.annealed(steps, max(1, round(DECAY * steps))).mean(1), strict=True):
            row["annealed"].append([steps * token, float(loss)])
        found["architecture"] |= {"lr": best, "seconds": {"search": searching, "train": time.perf_counter() - began}}
        write(options.out / f"{name}.json", found)
    write(options.out / f"{name}.json", {**found, "done": True})
    print(f"{name}: lr {best:g}, search {searching:.0f} s, training {time.perf_counter() - began:.0f} s", flush=True)


def train_alone(name: str, shape: str, arch: Any, place: int, options: argparse.Namespace) -> None:
    """One of the four: first one of the rates, then, when all rates are known, one seed on one text."""
    from plait.training.recipe import Recipe
    from plait.training.track import Replica, Track, track_recipe

    texts = packed(options.texts)
    recipe = track_recipe(Recipe(batch=options.batch, seq_len=SEQ_LEN), WARMUP)
    began = time.perf_counter()
    track = Track(arch, [Replica(RATES[place], RATE_SEED)], [t for _, t in texts], recipe, device=options.device,
                  compiled=False)  # fmt: skip
    token, rate_path = track.tokens_per_step, options.out / f"{name}.rate"
    row: dict[str, Any] = {"architecture": name, "text": texts[0][0], "lr": RATES[place], "annealed": []}
    for steps in (min(s, options.most) for s in RATE_STEPS):
        row["annealed"].append([steps * token, float(track.annealed(steps, max(1, round(DECAY * steps))).mean())])
    write(rate_path.with_suffix(f".rate{place}"), row)
    rates = [rate_path.with_suffix(f".rate{each}") for each in range(len(RATES))]
    while not all(path.exists() for path in rates):
        time.sleep(0.2)
    found = [json.loads(path.read_text()) for path in rates]
    best = min((r for r in found if np.isfinite(r["annealed"][-1][1])), key=lambda r: r["annealed"][-1][1])["lr"]
    searching, began = time.perf_counter() - began, time.perf_counter()
    text, seed = place // len(SEEDS), SEEDS[place % len(SEEDS)]
    track.restart([Replica(best, seed, text)])
    run: dict[str, Any] = {"architecture": name, "text": texts[text][0], "seed": seed, "lr": best, "trunk": [],
                           "annealed": []}  # fmt: skip
    for steps in (FIRST * 2**doubling for doubling in range(DOUBLINGS + 1)):
        if steps > options.most:
            break
        for trunk in (round(steps / 2**0.5 * (1 - DECAY)), steps - max(1, round(DECAY * steps))):
            track.advance_to(trunk)
            run["trunk"].append([trunk * token, float(track.score().mean())])
        run["annealed"].append([steps * token, float(track.annealed(steps, max(1, round(DECAY * steps))).mean())])
        about = {**described(name, shape, arch), "lr": best,
                 "seconds": {"search": searching, "train": time.perf_counter() - began}}  # fmt: skip
        write(rate_path.with_suffix(f".run{place}"), {"architecture": about, "rates": found, "run": run})
    print(
        f"{name} {run['text']} {seed}: lr {best:g}, {searching:.0f} + {time.perf_counter() - began:.0f} s", flush=True
    )


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
    while (item := queue.get()) is not None:
        name, shape, arch, place = item
        try:
            train(name, shape, arch, options) if place is None else train_alone(name, shape, arch, place, options)
        except Exception:
            print(f"{name} failed:\n{traceback.format_exc()[-2500:]}", flush=True)


def run(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    for name, (shape, arch) in architectures(options.only).items():
        done = options.out / f"{name}.json"
        if not (done.exists() and json.loads(done.read_text())["done"]):
            for place in range(len(RATES)) if options.split else [None]:
                queue.put((name, shape, arch, place))
    workers = [context.Process(target=work, args=(queue, options)) for _ in range(options.workers)]
    for worker in workers:
        queue.put(None)
        worker.start()
    for worker in workers:
        worker.join()
    print("all done", flush=True)


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
    found = [json.loads(path.read_text()) for path in sorted(options.folder.glob("*.json")) if path.stem != "about"]
    for first in sorted(options.folder.glob("*.run0")):
        parts = [json.loads(first.with_suffix(f".run{place}").read_text()) for place in range(len(RATES))]
        found.append({**parts[0], "runs": [part["run"] for part in parts]})
    about = json.loads(options.about.read_text())
    table = {
        "provenance": {
            "date": date.today().isoformat(), "machine": options.machine, "python": platform.python_version(),
            "decay": DECAY, "schedule": "wsd", "warmup_steps": WARMUP, "batch": BATCH, "seq_len": SEQ_LEN,
            "held_out_tokens": HELD_OUT, "rates": RATES, "rate_chosen_at_tokens": RATE_STEPS[-1] * BATCH * SEQ_LEN,
        },
        "texts": about,
        "architectures": [one["architecture"] for one in found],
        "runs": [row for one in found for row in one["runs"]],
        "rates": [row for one in found for row in one["rates"]],
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
    running.add_argument("--split", action="store_true")
    running.add_argument("--only", nargs="*", default=[])
    joining = verbs.add_parser("join")
    joining.add_argument("folder", type=Path)
    joining.add_argument("--about", type=Path, required=True, help="the .json beside the packed texts")
    joining.add_argument("--machine", default="")
    joining.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    {"pack": pack, "run": run, "join": join}[options.verb](options)


if __name__ == "__main__":
    main()
