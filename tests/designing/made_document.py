"""A document as `plait.designing.workflow.design` makes it, with numbers that are easy to reason about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

SPECS = {
    "attn×2": "d=64 vocab=256 | (attn[heads=4] swiglu)x2",
    "gla+attn": "d=64 vocab=256 | gla[heads=2] swiglu attn[heads=4] swiglu",
    "gla×2": "d=64 vocab=256 | (gla[heads=2] swiglu)x2",
}
TASKS = ("recall", "copying")


def entry(measured: float | None, predicted: float) -> dict[str, Any]:
    return {"predicted": predicted, "interval": [0.9 * predicted, 1.1 * predicted], "measured": measured}


def row(pattern: str, params: int, ms: float, mb: float) -> dict[str, Any]:
    return {
        "pattern": pattern,
        "spec": SPECS[pattern],
        "decoder_params": params,
        "total_params": params + 1000,
        "state": 2048,
        "latency_ms": {**entry(ms, ms), "noisy": False},
        "memory_mb": entry(mb, mb),
        "within": True,
        "exceeded": [],
    }


def score(accuracy: float, half: float, rank: int = 1) -> dict[str, Any]:
    return {"accuracy": accuracy, "interval": [accuracy - half, accuracy + half], "rank": rank, "loss": 1.0}


def document(
    *,
    accuracy: Mapping[str, Mapping[str, float]],
    params: Mapping[str, int],
    pick: str,
    equals: list[str],
    half: float = 0.02,
    entropy: float | None = None,
    scale: float = 1.0,
    ms: float = 19.0,
    loss: Mapping[str, float] | None = None,
    foresight: list[dict[str, Any]] | None = None,
    beyond: float = 1.0,
) -> dict[str, Any]:
    """`accuracy` by mix and task; whiskers are `half` wide to either side, differences twice as uncertain. `loss`: the
    race's forecast, by default the less the more accurate; who is not in `equals` is beaten. `beyond`: how many times
    the budget is what the race can speak about."""
    means = {pattern: sum(by_task.values()) / len(by_task) for pattern, by_task in accuracy.items()}
    ranked = sorted(means, key=lambda pattern: -means[pattern])
    probed = []
    for pattern in ranked:
        gap = means[pick] - means[pattern]
        sign = 0 if abs(gap) <= 2 * half else 1 if gap > 0 else -1
        ahead = {"value": gap, "interval": [gap - 2 * half, gap + 2 * half], "sign": sign}
        tasks = {task: score(accuracy[pattern][task], half) for task in TASKS}
        mean = score(means[pattern], half, 1 + ranked.index(pattern))
        better = [task for task in TASKS if accuracy[pattern][task] - accuracy[pick][task] > 2 * half]
        described = {"spec": SPECS[pattern], "note": "", "pick_ahead_by": ahead, "better_than_pick_on": better}
        probed.append({"name": pattern, "tasks": tasks, "mean": mean, **described})
    losses = loss or {pattern: 3.0 - means[pattern] - (0.5 if pattern == pick else 0.0) for pattern in means}
    raced = [
        {"name": name, "spec": SPECS[name], "loss": losses[name], "interval": [losses[name] - 0.1, losses[name] + 0.1],
         "seeds": 1, "tokens": 4e6, "trained_tokens": 1e6, "lr": 2e-3, "curve": [[250_000, 3.5], [1_000_000, 3.1]],
         "p_best": 0.8 if name == pick else 0.2 / max(1, len(losses) - 1), "regret": 0.0, "stopped": name not in equals}
        for name in sorted(losses, key=lambda name: losses[name])
    ]  # fmt: skip
    paired = [
        {"a": pick, "b": name, "difference": losses[pick] - losses[name], "p": 0.99,
         "interval": [losses[pick] - losses[name] - 0.05, losses[pick] - losses[name] + 0.05],
         "verdict": "not distinguishable" if name in equals else pick}
        for name in losses if name != pick
    ]  # fmt: skip
    seen = [{"tokens": 4e6, "best": pick, "p_best": {name: 1.0 / len(losses) for name in losses}}]
    rows = {pattern: row(pattern, number, ms, 30.0) for pattern, number in params.items()}
    known = {} if entropy is None else {"entropy": entropy, "above_entropy": 2.0 / entropy - 1}
    return {
        "config": {
            "space": "small-hybrid",
            "limits": {"latency": 0.02, "memory": 1e8},
            "setting": {"mode": "prefill", "seq": 256, "batch": 1, "threads": 1, "dtype": "float32"},
            "data": "builtin:stdlib",
            "seconds": 300.0,
            "seed": 0,
            "train_for": "4e+06 tokens",
        },
        "machine": {
            "started": "2026-01-02T03:04:05+00:00", "seconds": 250.0, "plait": "0.1.0", "code": "abc", "python": "3.11",
            "torch": "2.13", "system": "Linux x86_64", "cpu": "A processor & Co", "cores": 2,
        },
        "profile": {
            "hash": "0123", "made": "2026-01-02T03:04:05", "points": {"layer": 60, "outside": 4, "model": 5, "noisy": 1}
        },
        "search": {
            "space": "small-hybrid", "method": "nsga2", "evaluated": 10200, "on_front": 900,
            "front": [{**row("gla×2", 5_000, 2.0, 3.0), "spec": "d=16 vocab=256 | gla[heads=2]"}],
            "over_limit": [{**row("attn×2", 6_000, 25.0, 3.0), "within": False, "exceeded": ["25ms, not 20ms"]}],
        },
        "predicted_front": [
            {"spec": "d=32 vocab=256 | attn", "decoder_params": 9_000, "latency_ms": entry(None, 3.0),
             "memory_mb": entry(None, 4.0)}
        ],
        "size": "decoder_params",
        "candidates": list(rows.values()),
        "probe": {"tasks": list(TASKS), "seeds": dict.fromkeys(TASKS, 1), "scale": scale, "runs": 12, "steps": 1200,
                  "architectures": probed, "left_out": ""},
        "race": {"architectures": raced, "paired": paired, "noise": 0.02, "verdict": f"{pick} is best",
                 "rungs": [250_000, 1_000_000, 4_000_000], "cost": {"share": 0.25, "seconds": 90.0}},
        "budget": {"stated": "4e+06 tokens", "tokens": 4e6 * beyond, "spoken_for": 4e6},
        "foresight": foresight or seen,
        "foresight_text": "attn×2 is best up to about 1 M tokens, then gla+attn" if foresight else "",
        "recommended": SPECS[pick],
        "rule": "the rule",
        "pick": rows[pick],
        "best_probed": ranked[0],
        "not_distinguishable": equals,
        "plain": "attn×2" if "attn×2" in rows else None,
        "train": {
            "run": "train-0123", "folder": "runs/train-0123", "data": "builtin:stdlib", "loss": 2.0, "perplexity": 7.4,
            "bits_per_character": 2.9, "seconds": 60.0, "tokens": 500_000, "steps": 250, "tokens_per_second": 8_000.0,
            "mfu": 0.4, "recipe": {"batch": 8, "seq_len": 256}, "seed": 0,
            "curve": [[10 * i, 5.0 - 0.1 * i] for i in range(25)], "held_out_curve": [[125, 2.6], [250, 2.0]], **known,
        },
        "stages": {"profile": 72.0, "search": 2.0, "measure": 30.0, "probe": 30.0, "race": 100.0, "train": 60.0},
        "commands": ["plait design --latency 20ms"],
        "next": [{"to": "use the model", "command": "plait export runs/train-0123 --to hf"}],
        "points": ["Take it.", "It is the best.", "Limits: latency 19 of 20 ms, attn[heads=4] and all."],
        "advice": "Take it. It is the best.",
    }  # fmt: skip
