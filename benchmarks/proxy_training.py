"""Cheaper trainings instead of the first part of a full one: do they rank architectures as full trainings do?

    python benchmarks/proxy_training.py run TEXTS.npz -o FOLDER [--device cuda] [--have FILE.json ...]
    python benchmarks/proxy_training.py join FOLDER [--have FILE.json ...] -o benchmarks/results/DATE-proxies.json

The truth table (`truth.py`) trains architectures of 0.8 M parameters for 4096 steps of 32 sequences. A race with a
tenth of that cost observes only the first steps, before any model has learnt to copy from the context, but late
learning decides. Here the architectures of the table are trained at about the same cost in other ways (`SETUPS`):

    small-batch     a quarter of the steps, with a quarter of the batch
    tiny-batch      all of the steps, with a sixteenth of the batch
    tiny-short      the same on copied texts alone: the race's screening
    tiny-early      the first half of that
    tiny-mixed      the same on texts that are in part copied
    tiny-some       the same of the second kind alone, with other seeds
    tiny-apart      that, and texts whose copies do not follow at once
    tiny-both       that, and copied texts, scored on held-out copies too
    three-short     all of the steps, with three sequences of 240 tokens (8.8 % of the tokens), in part copied
    one-sequence    all of the steps, with a thirty-second of the batch
    half-sequence   all of the steps, with one sequence of half the length: a sixty-fourth of the tokens of a step,
                    and a sixteenth where a step has 8 sequences
    narrow          all of the steps and tokens, with a quarter of the width

Some replicas read *copied* text, in which every piece of 24 to 120 bytes (*short*: 8 to 32) is followed by a copy of
itself: models that can learn to copy from the context learn it sooner there. *Half* is half plain, half short text, one
after the other, so that a window is either; in *some* every second piece of 8 to 32 bytes, at random, has a copy; in
*apart* that copy comes behind the next piece.

A setup is one track (`plait.training.track`) per architecture, with the table's learning rate times a factor, and is
scored on annealed branches: the held-out loss; the loss of bytes that repeat the context (the three bytes before them,
and they themselves, occur earlier in the window) and of all others; and of such bytes of held-out text of the kind
*some*. Setups are trained in the order of `SETUPS`, each
with all architectures, slowest first; every training is a separate process; an interrupted run keeps all scores so
far.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import re
import time
import traceback
from dataclasses import dataclass
from datetime import date
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import truth

SEEDS = (3, 4)  # none of the truth table's
# Of kinds of copied text: bytes of a piece, from and below, and the share of the pieces that have a copy.
COPIES = {"copied": ((24, 121), 1.0), "short": ((8, 33), 1.0), "some": ((8, 33), 0.5), "apart": ((8, 33), 0.5)}
WINDOWS = 256  # held out, of the truth table's length; as many bytes of others
SCORED_AT_ONCE = 64
DIFFERENT = 0.2  # relative: a recorded gradient that is not the plain one but for bf16
START = 25  # seconds that a training needs at least before its first score
TABLE = Path(__file__).parent / "results" / "2026-11-16-h200-truth.json"


@dataclass(frozen=True)
class Setup:
    """`shrink`: divides widths. `kinds`: what is trained side by side on every text: (kind of text, factor of the
    table's learning rate), with every one of `seeds`. `scored`: steps of the annealed branches."""

    name: str
    shrink: int
    batch: int
    kinds: tuple[tuple[str, float], ...]
    scored: tuple[int, ...]
    seeds: tuple[int, ...] = SEEDS
    seq_len: int = truth.SEQ_LEN


SETUPS = {
    setup.name: setup
    for setup in (
        Setup("small-batch", 1, 8, (("plain", 0.5), ("copied", 0.5)), (128, 256, 512, 1024), seeds=SEEDS[:1]),
        Setup("tiny-batch", 1, 2, (("plain", 0.35), ("short", 0.35)), (1024, 2048, 4096)),
        Setup("tiny-short", 1, 2, (("short", 0.35),), (1024, 2048, 4096)),
        Setup("tiny-early", 1, 2, (("short", 0.35),), (1024, 2048)),
        Setup("tiny-mixed", 1, 2, (("half", 0.35), ("some", 0.35)), (2048, 4096), seeds=SEEDS[:1]),
        Setup("tiny-some", 1, 2, (("some", 0.35),), (1024, 2048, 4096), seeds=(4, 5)),
        Setup("tiny-both", 1, 2, (("some", 0.35), ("short", 0.35)), (2048, 4096), seeds=(4, 5)),
        Setup("tiny-apart", 1, 2, (("some", 0.35), ("apart", 0.35)), (2048, 4096), seeds=(4, 5)),
        Setup("three-short", 1, 3, (("some", 0.4),), (1024, 2048, 4096), seq_len=240),
        Setup("half-sequence", 1, 1, (("short", 0.2),), (1024, 2048, 4096), seq_len=truth.SEQ_LEN // 2),
        Setup("one-sequence", 1, 1, (("short", 0.25),), (1024, 2048, 4096)),
        Setup("narrow", 4, 32, (("plain", 2.0), ("short", 2.0)), (512, 1024, 2048, 4096), seeds=SEEDS[:1]),
    )
}


Item = tuple[str, Any, Setup, float, bool]  # name, architecture, setup, the table's rate, whether nothing is recorded


def shrunk(body: str, header: str, factor: int) -> str:
    """The same layers of a model whose width is divided by `factor`: narrower heads and states, half as many heads."""
    if factor == 1:
        return f"{header} | {body}"
    d = int(re.search(r"d=(\d+)", header).group(1)) // factor  # type: ignore[union-attr]
    heads = 3 if d % 3 == 0 else 2
    body = re.sub(r"head_dim=(\d+)", lambda m: f"head_dim={int(m[1]) // factor}", body)
    body = re.sub(r"state=(\d+)", lambda m: f"state={int(m[1]) // factor}", body)
    body = re.sub(r"(\w+_rank)=(\d+)", lambda m: f"{m[1]}={int(m[2]) // 2}", body)
    body = re.sub(r"\b(attn|fox|gla|linear)\[heads=\d+", lambda m: f"{m[1]}[heads={heads}", body)
    body = body.replace("mh-hyena[heads=16]", "mh-hyena[heads=8]")
    return f"{re.sub(r'd=[0-9]+', f'd={d}', header)} | {body}"


def architectures(names: list[str], factor: int) -> dict[str, Any]:
    """Those of the truth table, and all of one number of parameters at the smaller width."""
    from contextlib import suppress

    from plait.core.errors import UserError
    from plait.model.architecture import architecture
    from plait.model.cost import decoder_params
    from plait.model.resize import match

    target = decoder_params(architecture(shrunk(truth.WIDE[truth.SIZE], truth.HEADERS["wide"], factor)))
    found = {}
    for shape, bodies in (("deep", truth.DEEP), ("wide", truth.WIDE)):  # the slowest first
        for name, body in ((name, body) for name, body in bodies.items() if name in names):
            arch = architecture(shrunk(body, truth.HEADERS[shape], factor))
            with suppress(UserError):
                arch = match(arch, params=target, tolerance=0.02)
            found[name] = arch
    return found


@dataclass(frozen=True)
class HeldOut:
    """Windows of one text, plain ones and then such with copies, and sets of their targets by name."""

    inputs_NT: np.ndarray
    targets_NT: np.ndarray
    parts: dict[str, np.ndarray]

    def first(self, count: int) -> HeldOut:
        rows = [*range(count), *range(len(self.inputs_NT) - count, len(self.inputs_NT))]
        parts = {part: mask_NT[rows] for part, mask_NT in self.parts.items()}
        return HeldOut(self.inputs_NT[rows], self.targets_NT[rows], parts)


def copied(tokens: np.ndarray, kind: str, rng: np.random.Generator) -> np.ndarray:
    """Pieces of the text; a share, drawn at random, is followed by a copy, at once or behind the next piece."""
    lengths, share = COPIES[kind]
    pieces = np.split(tokens, np.cumsum(rng.integers(*lengths, size=len(tokens) // lengths[0] + 1)))
    again = [[piece] * int(rng.random() < share) for piece in pieces]
    if kind == "apart":
        again = [[], *again[:-1]]
    return np.concatenate([part for piece, copies in zip(pieces, again, strict=True) for part in (piece, *copies)])


@lru_cache(maxsize=1)
def read_texts(
    path: Path, tokens: int, setup: Setup, only: tuple[str, ...]
) -> tuple[list[str], list[Any], list[HeldOut]]:
    """Names of the texts; the track's texts, of all of the setup's kinds in turn; held-out windows by text."""
    from plait.racing.screening import repeats
    from plait.training.track import Text

    kept = np.load(path)
    names = [name for name in dict.fromkeys(key.split("/")[0] for key in kept.files) if not only or name in only]
    texts, held_out = [], []
    for name in names:
        train, validation = kept[f"{name}/train"], kept[f"{name}/validation"]
        plain = Text.cut(name, train, validation, setup.seq_len, WINDOWS * truth.SEQ_LEN)
        doubled = copied(validation, "some", np.random.default_rng(8))
        twice = Text.cut(name, train, doubled, setup.seq_len, WINDOWS * truth.SEQ_LEN)
        inputs_NT = np.concatenate([plain.inputs_NT, twice.inputs_NT])
        targets_NT = np.concatenate([plain.targets_NT, twice.targets_NT])
        mask_NT = repeats(inputs_NT, targets_NT)
        plain_N1 = np.arange(len(inputs_NT))[:, None] < len(plain.inputs_NT)
        parts = {"loss": plain_N1 | (mask_NT & False), "repeats": plain_N1 & mask_NT, "others": plain_N1 & ~mask_NT,
                 "copies": ~plain_N1 & mask_NT}  # fmt: skip
        held_out.append(HeldOut(inputs_NT, targets_NT, parts))

        def of_kind(kind: str, train: np.ndarray = train) -> np.ndarray:
            if kind == "half":
                short = of_kind("short")
                return np.concatenate([train[: len(short)], short])
            return train if kind == "plain" else copied(train[:tokens], kind, np.random.default_rng(7))

        texts += [Text(of_kind(kind), plain.inputs_NT, plain.targets_NT) for kind, _ in setup.kinds]
    return names, texts, held_out


def proxy_track(
    arch: Any, replicas: list[Any], texts: list[Any], recipe: Any, device: str, plain: bool, say: Any
) -> tuple[Any, str]:
    """A track whose step is captured without being compiled, and how: stacked replicas from a recorded graph, or, where
    that fails, gives other gradients or is not wanted (`plain`), one replica after the other, in several times as many
    kernels."""
    import torch

    from plait.ops.paths import autocast_on
    from plait.training.ensemble_step import record_gradients
    from plait.training.track import Track

    track = Track(arch, replicas, texts, recipe, device=device, compiled=False)
    if plain:
        return track, "one by one"
    stepper, began = track._stepper, time.perf_counter()
    tokens, targets = track.batch(track._starts(0))
    together = torch.func.vmap(torch.func.grad_and_value(stepper._loss))
    try:
        with autocast_on(track.device):
            expected, _ = stepper._one_by_one(
                track.params, tokens, targets
            )  # also fills what modules keep: rotary angles
            record = record_gradients(together, track.params, (tokens, targets))

        def recorded(params: Any, tokens: Any, targets: Any) -> Any:
            with torch.autocast(track.device.type, enabled=False):  # it is part of the record
                return record(params, tokens, targets)

        found, _ = recorded(track.params, tokens, targets)
        far = sum((found[name].float() - g.float()).square().sum() for name, g in expected.items())
        off = float((far / sum(g.float().square().sum() for g in expected.values())) ** 0.5)
        if not off < DIFFERENT:
            say(f"one by one: the recorded gradient is off by {off:.3f}")
            return track, "one by one"
        say(f"recorded after {time.perf_counter() - began:.0f} s, off by {off:.4f}")
    except Exception:
        say(f"one by one: the record failed: {traceback.format_exc()[-900:]}")
        return track, "one by one"
    stepper._gradients = recorded
    return track, "recorded"


def timed(track: Any, steps: int) -> float:
    """Seconds per step, which leaves the track some steps on: after those that record, capture and tune."""
    track.advance_to(steps)
    began = time.perf_counter()
    track.advance_to(2 * steps)  # waits for the device at its end
    return (time.perf_counter() - began) / steps


def score(track: Any, held_out: list[HeldOut], kinds: int) -> list[dict[str, float]]:
    """For every replica: mean losses of the parts of its text's windows."""
    import torch

    from plait.ops.paths import autocast_on

    found: list[dict[str, float]] = []
    with torch.no_grad():
        for m, replica in enumerate(track.replicas):
            params = {name: p[m] for name, p in track.params.items()}
            windows, losses = held_out[replica.text // kinds], []
            for begin in range(0, len(windows.inputs_NT), SCORED_AT_ONCE):
                rows = slice(begin, begin + SCORED_AT_ONCE)
                inputs = torch.from_numpy(windows.inputs_NT[rows]).to(track.device)
                targets = torch.from_numpy(windows.targets_NT[rows]).to(track.device)
                with autocast_on(track.device):
                    logits = track.template.logits(params, inputs).float()
                losses.append(-logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0].cpu().numpy())
            loss_NT = np.concatenate(losses)
            found.append({part: float(loss_NT[mask_NT].mean()) for part, mask_NT in windows.parts.items()})
    return found


def train(
    name: str, arch: Any, setup: Setup, rate: float, plain: bool, options: argparse.Namespace, ends: float
) -> None:
    from plait.model.cost import model_cost
    from plait.training.recipe import Recipe
    from plait.training.track import Replica, track_recipe

    def say(what: str) -> None:
        print(f"{time.time() - ends:6.0f} s  {setup.name} {name}: {what}", flush=True)

    names, texts, held_out = read_texts(options.texts, options.tokens, setup, tuple(options.text))
    if options.rehearse:
        held_out = [windows.first(4) for windows in held_out]
    recipe = track_recipe(Recipe(batch=1 if options.rehearse else setup.batch, seq_len=setup.seq_len), truth.WARMUP)
    replicas = [
        Replica(factor * rate, seed, len(setup.kinds) * text + place)
        for text in range(len(names))
        for place, (_, factor) in enumerate(setup.kinds)
        for seed in setup.seeds
    ]
    began = time.time()
    track, way = proxy_track(arch, replicas, texts, recipe, options.device, plain, say)
    seconds_per_step = timed(track, 1 if options.rehearse else 20)
    say(f"{1000 * seconds_per_step:.1f} ms per step")
    found: dict[str, Any] = {
        "architecture": name, "setup": setup.name, "spec": arch.text,
        "flops_per_token": model_cost(arch, seq=truth.SEQ_LEN).flops / truth.SEQ_LEN,
        "seconds_per_step": seconds_per_step, "way": way, "done": False,
        "runs": [
            {"text": names[r.text // len(setup.kinds)], "kind": setup.kinds[r.text % len(setup.kinds)][0],
             "seed": r.seed, "lr": r.lr, "factor": r.lr / rate, "annealed": []}
            for r in replicas
        ],
    }  # fmt: skip
    path = options.out / f"{setup.name}.{name}.json"
    scored: list[dict[str, float]] = []
    track.score = lambda *_: scored.extend(score(track, held_out, len(setup.kinds))) or np.zeros((len(replicas), 1))
    for steps in range(3, 5) if options.rehearse else setup.scored:
        decay = max(1, round(truth.DECAY * steps))
        if time.time() + 1.1 * (steps - track.step) * seconds_per_step + 8 > ends:
            say(f"{steps} steps do not fit")
            break
        scored.clear()
        track.annealed(steps, decay)
        for run, row in zip(found["runs"], scored, strict=True):
            run["annealed"].append([steps * track.tokens_per_step, row])
        truth.write(path, found)
    else:
        truth.write(path, {**found, "done": True})
    losses = " ".join(f"{run['annealed'][-1][1]['loss']:.3f}" for run in found["runs"] if run["annealed"])
    say(f"{track.step} steps, {losses}, {time.time() - began:.0f} s")


def work(item: Item, options: argparse.Namespace, ends: float) -> None:
    import torch

    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        train(*item, options, ends)
    except Exception:
        print(f"{item[2].name} {item[0]} failed:\n{traceback.format_exc()[-2500:]}", flush=True)
        raise SystemExit(1) from None  # after a failed capture nothing works in this process


def run(options: argparse.Namespace) -> None:
    options.out.mkdir(parents=True, exist_ok=True)
    ends = time.time() + options.seconds
    rates = {row["name"]: row["lr"] for row in json.loads(TABLE.read_text(encoding="utf-8"))["architectures"]}
    names = [name for name in (*truth.WIDE, *truth.DEEP) if name in rates and name in (options.only or rates)]
    have = {
        (row["setup"], row["architecture"])
        for path in options.have
        for row in json.loads(path.read_text(encoding="utf-8"))["setups"]
        if row["done"]
    }
    items = [
        (name, arch, setup, rates[name], False)
        for setup in (SETUPS[name] for name in options.setups)
        for again in (False, True)
        for name, arch in architectures(names, setup.shrink).items()
        if ((setup.name, name) in have) == again
    ]
    context = multiprocessing.get_context("spawn")
    running: list[tuple[Any, Item]] = []
    while (items and time.time() + START < ends) or (running and time.time() < ends):
        ended = [pair for pair in running if pair[0].exitcode is not None]
        running = [pair for pair in running if pair not in ended]
        for process, (*item, plain) in ended:
            if process.exitcode and not plain:  # once more, with the plain step
                items.insert(0, (*item, True))
        while items and len(running) < options.workers and time.time() + START < ends:
            item = items.pop(0)
            process = context.Process(target=work, args=(item, options, ends))
            process.start()
            running.append((process, item))
        time.sleep(0.2)
    for process, _ in running:
        process.kill()
        process.join()
    report(options.out)


def report(folder: Path) -> None:
    """How many of each setup were trained how far."""
    counts: dict[tuple[str, int], int] = {}
    for found in (json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))):
        for tokens, _ in found["runs"][0]["annealed"]:
            counts[found["setup"], tokens] = counts.get((found["setup"], tokens), 0) + 1
    for (setup, tokens), count in sorted(counts.items()):
        print(f"{setup:12s} {tokens / 1e6:7.2f} M tokens: {count} architectures", flush=True)


def join(options: argparse.Namespace) -> None:
    """New trainings with those of earlier sittings, except what was trained no farther than now."""
    found = [json.loads(path.read_text()) for path in sorted(options.folder.glob("*.json"))]
    far = {(row["setup"], row["architecture"]): row["runs"][0]["annealed"][-1][0] for row in found}
    kept = [
        row
        for path in options.have
        for row in json.loads(path.read_text(encoding="utf-8"))["setups"]
        if row["runs"][0]["annealed"][-1][0] > far.get((row["setup"], row["architecture"]), 0)
    ]
    found = sorted([*kept, *found], key=lambda row: (list(SETUPS).index(row["setup"]), row["architecture"]))
    document = {"date": date.today().isoformat(), "machine": options.machine, "seeds": SEEDS, "setups": found}
    text = json.dumps(document, separators=(",", ":")).replace('{"architecture"', '\n{"architecture"')
    options.out.write_text(text + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("texts", type=Path)
    running.add_argument("-o", "--out", type=Path, required=True)
    running.add_argument("--device", default="cuda")
    running.add_argument("--workers", type=int, default=9)
    running.add_argument("--seconds", type=float, default=420)
    running.add_argument("--tokens", type=int, default=4_000_000, help="of a text that are copied")
    running.add_argument("--setups", nargs="*", default=list(SETUPS), choices=list(SETUPS))
    running.add_argument("--have", type=Path, nargs="*", default=[], help="joined results: what they have comes last")
    running.add_argument("--only", nargs="*", default=[])
    running.add_argument("--text", nargs="*", default=[], help="only these")
    running.add_argument("--rehearse", action="store_true", help="few steps of one sequence, few windows")
    joining = verbs.add_parser("join")
    joining.add_argument("folder", type=Path)
    joining.add_argument("--have", type=Path, nargs="*", default=[], help="joined results to keep")
    joining.add_argument("--machine", default="")
    joining.add_argument("-o", "--out", type=Path, required=True)
    options = parser.parse_args()
    {"run": run, "join": join}[options.verb](options)


if __name__ == "__main__":
    main()
