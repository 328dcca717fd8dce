"""A store with a record of every kind that has a view, and one of a kind that nobody knows; names are hostile."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from plait.records import Record, Store, open_store
from plait.records.record import json_text, seal

NASTY = "<script>alert(1)</script>"
ABOUT = {"started": "2026-03-04T05:06:07+00:00", "seconds": 30.0, "plait": "0.1", "torch": "2.13", "cpu": NASTY}
ATTN, GLA = "d=16 vocab=256 | attn[heads=2] swiglu", "d=16 vocab=256 | gla[heads=2] swiglu"


def record(kind: str, config: dict[str, Any], **result: Any) -> Record:
    return Record.of(kind, {"protocol": 1, **config}, result, ABOUT)


def training(seed: int, spec: str = ATTN) -> Record:
    return record(
        "train",
        {"seed": seed, "spec": spec, "recipe": {"seq_len": 16, "batch": 2, "lr": 0.001 * (seed + 1)}},
        spec=spec, data=NASTY, loss=2.5 - 0.1 * seed, perplexity=12.0, tokens=3200, steps=100, params=5000, seconds=3.0,
        flops=1e9 * (seed + 1), curve=[[step, 5 - step / 50] for step in range(1, 101)],
        held_out_curve=[[50, 3.0], [100, 2.5]],
    )  # fmt: skip


def compared() -> dict[str, Any]:
    rows = [
        {"name": name, "spec": spec, "loss": 3.0 + at, "interval": [2.9 + at, 3.1 + at], "p_best": 0.9 - 0.8 * at,
         "lr": 0.002, "tokens": 4000, "params": 5000 + at, "flops_per_token": 1e4, "seeds": 2, "diverged": 0,
         "curve": [[1000, 3.6 + at], [2000, 3.2 + at], [4000, 3.0 + at]], "rates": {"0.002": 3.0 + at}}
        for at, (name, spec) in enumerate({NASTY: ATTN, "gla": GLA}.items())
    ]  # fmt: skip
    pair = {"a": NASTY, "b": "gla", "difference": -1.0, "interval": [-1.2, -0.8], "verdict": NASTY}
    return {
        "verdict": f"{NASTY} is best", "data": NASTY, "equal": "tokens", "batch": 2, "seq_len": 16,
        "noise": 0.02, "notes": [NASTY], "architectures": rows, "paired": [pair], "cost": {"trained_seconds": 3.0},
        "foresight": [{"tokens": tokens, "p_best": {NASTY: 0.9, "gla": 0.1}} for tokens in (2000, 8000)],
        "foresight_text": NASTY,
    }  # fmt: skip


def front() -> dict[str, Any]:
    rows = [
        {"spec": f"d=16 vocab=256 | ({'attn[heads=2]' if n % 2 else 'gla[heads=2]'} swiglu)x{n + 1}",
         "decoder_params": 1000 * (n + 1), "flops": 1e6 * (n + 1) ** 2, "latency": 0.001 * (n + 2)}
        for n in range(16)
    ]  # fmt: skip
    objectives = [{"objective": "decoder_params", "maximise": True}, {"objective": "flops", "maximise": False},
                  {"objective": "latency", "maximise": False}]  # fmt: skip
    return {
        "space": NASTY, "method": "nsga2", "objectives": objectives, "front": rows, "evaluated": 400, "proposed": 500,
        "limits": {"latency": 0.04}, "setting": {"seq": 64}, "cost": {"search_seconds": 2.0},
    }  # fmt: skip


def supernet() -> dict[str, Any]:
    seed = {"seed": 0, "layers": ["attn", NASTY], "spec": ATTN, "loss": 2.5, "steps": 100, "settled": 0.9,
            "probabilities": [[0.8, 0.2], [0.3, 0.7]]}  # fmt: skip
    return {**front(), "method": "gumbel", "choices": [["attn", NASTY], ["attn", NASTY]], "seeds": [seed]}


def probe(seed: int, spec: str, task: str) -> Record:
    replica = {"seed": seed, "lr": 0.001, "weight_decay": 0.1, "steps": 100, "stopped": "", "test": [0.6, 1.0],
               "validation": [[50, 0.4, 2.0], [100, 0.6, 1.0]], "losses": [[50, 2.0]]}  # fmt: skip
    found = {"seed": seed, "accuracy": 0.6, "loss": 1.0, "chosen": 0, "ceiling": 1.0, "chance": 0.1,
             "lengths": {"2": 0.5, "4": 0.3}}  # fmt: skip
    other = {**found, "seed": seed + 1, "accuracy": 0.7}
    learned = {"steps": 100, "batch": 8, "evaluation": 64}
    config = {"spec": spec, "task": {"task": task, "vocab": 16}, "training": learned, "seeds": [seed, seed + 1]}
    return record("probe", config, accuracy=0.65, seeds=[found, other], replicas=[replica])


def probed() -> dict[str, Any]:
    score = {"accuracy": 0.6, "interval": [0.5, 0.7], "std": 0.1, "loss": 1.0, "rank": 1, "loss_rank": 1}
    row = {"name": NASTY, "spec": ATTN, "params": 1000, "fixed_state": 64, "state_grows": True, "mean": score,
           "tasks": {NASTY: {**score, "seeds": 2, "ceiling": 1.0, "lengths": {"2": 0.4}}}}  # fmt: skip
    return {"verdict": f"{NASTY} is best", "protocol": "quick", "device": "cpu", "architectures": [row],
            "ran": {"steps_share": 1.0}, "cost": {"runs": 4, "steps": 400}, "notes": [NASTY]}  # fmt: skip


def every_record() -> list[Record]:
    trained = [training(seed, spec) for seed in range(5) for spec in (ATTN, GLA)]
    studied = [
        {"key": one.key, "architecture": NASTY if n % 2 else "gla", "budget": 1e9} for n, one in enumerate(trained)
    ]
    matrix = [[1.0, 0.0], [0.5, 0.5]]
    asked = [{"length": 16 * n, "score": 0.9 / n, "interval": [0.3, 0.95], "chance": 0.1} for n in (1, 2, 4)]
    return [
        *trained,
        record("track", {"spec": ATTN, "seed": 0, "recipe": {"lr": 0.1}}, loss=3.0, tokens=64, windows=[3.0]),
        record("search", {"method": "nsga2"}, **front()),
        record("search", {"method": "gumbel"}, **supernet()),
        probe(0, ATTN, "recall"),
        probe(0, GLA, NASTY),
        record("probe-verdict", {}, **probed()),
        record("compare", {}, **compared()),
        record("scale", {"runs": studied, "data": {}}, text=NASTY, diverged=[]),
        record("eval", {"spec": ATTN, "evaluation": "maps", "trained_length": 16},
               maps=[{"layer": 0, "head": 0, "sharp": 0.5, "distance": 1.0, "memory": 2.0, "attention": matrix,
                      "forget": matrix}]),
        record("eval", {"spec": ATTN, "evaluation": "per-token"}, lengths=[1, 2, 4], perplexity=[9.0, 8.0, 7.5]),
        record("eval", {"spec": ATTN, "evaluation": "ruler", "trained_length": 16}, threshold=0.856, trained_length=16,
               mean={"points": asked, "effective_length": 16, "certain_length": 0},
               tasks={NASTY: {"points": asked, "shortest": 8}, "vt": {"points": asked}, f"{NASTY}2": {"points": []}}),
        record("measure", {"spec": ATTN, "device": "cpu"}, latency={"seconds": 0.004}),
        record(f"{NASTY}", {"mixer": NASTY}, **{NASTY: 3.5, "text": NASTY}),
    ]  # fmt: skip


def filled(folder: Path) -> Store:
    store = open_store(f"sqlite:///{folder}/plait.db")
    for each in every_record():
        store.put(each)
    return store


def many(folder: Path, number: int) -> Store:
    """As `Store.put` writes them, many in one transaction."""
    store = filled(folder)
    rows: list[dict[str, Any]] = []
    for n in range(number):
        made = probe(100 + n, GLA, "recall") if n % 2 else training(100 + n)
        config, result = json_text(made.config, "config", canonical=True), json_text(made.result, "result")
        about = seal(made.key, made.kind, config, result, json_text(made.provenance, "about"))
        texts = {"config": config, "result": result, "about": about}
        rows.append({"id": 1000 + n, "key": made.key, "kind": made.kind, **texts})
        if len(rows) == 1000:
            store.restore(rows)
            rows = []
    store.restore(rows)
    return store
