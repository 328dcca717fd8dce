"""State tracking and recall at equal state: which mixers keep a parity, follow a group and recall pairs.

    python benchmarks/tracking.py SET [--only MIXER] [--steps 800] [--seeds 3] [--lrs 1e-3/3e-3] [--out FILE.jsonl]
    python benchmarks/tracking.py page FILE.jsonl … --out FILE.md

A set is a task, its sizes and the mixers that run on it (`SETS`); every mixer of a set has the same training: AdamW
without weight decay, the rate falling to 0 along a cosine; where every prefix of a sequence is one of the task's, an
eighth of the length comes first, then a quarter, then half (`plait.probing.protocol.CURRICULUM`). Scored in the second
half of new sequences 1, 2, 4 and 8 times as long as in training: at 2 and more every scored position lies beyond it.

With several learning rates every seed is trained with each, and the one whose mean over the seeds is the best on the
validation split is told. On a GPU `--path` says how a step is run (`captured`: as one graph, not compiled) and
`--until` (seconds since 1970) when to be done: a few steps are timed, and as many taken as there is time for. The sets
called `learn-…` show whether some small model learns every task of the suites.

What is expected: Grazzi et al. 2024, arXiv:2411.12537 (parity needs a negative eigenvalue); Siems et al. 2025,
arXiv:2502.10297 (S3 in one layer needs two steps); Arora et al. 2023, arXiv:2312.04927 (recall grows with the state).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from plait.analysis.intervals import estimate
from plait.model.architecture import architecture
from plait.model.resize import decoder_params, total_state
from plait.ops.paths import plain_ops
from plait.probing.protocol import curriculum
from plait.records import provenance_of
from plait.tasks import Examples, baseline, chance, draw, make_data
from plait.training import ensemble, ensemble_step
from plait.training.ensemble import Fleet, Member, MemberRecord, Plan, Split
from plait.training.ensemble_step import Stepper

FIT, SCORING = 40, 10.0  # timed steps; seconds kept for the scores at the end
CHECKED = 25  # steps between looks at the clock
EVALUATIONS = 20  # of a training, on the validation split
SELECTION = "4, validation"
HIDDEN = ("provenance", "replicas", "spec", "task")  # in the file, not on the screen


@dataclasses.dataclass(frozen=True)
class Set:
    """A task at a size, what is trained on it and how."""

    task: str
    settings: dict[str, str]
    mixers: tuple[str, ...]
    spec: str  # with {mixer}
    steps: int
    batch: int
    lr: float
    lengths: tuple[int, ...] = (2, 4, 8)
    lrs: tuple[float, ...] = ()
    decays: tuple[float, ...] = (0.0,)
    short_first: bool = True  # short prefixes first, where every prefix of a sequence is one of the task's
    solved: float | None = None  # a replica with this validation accuracy stops; None: all train to the end


SMALL = "d=32 vocab={vocab} init=0.15 embed_scale=true | {mixer}"
NARROW = "d=64 vocab={vocab} init=0.1 embed_scale=true | {mixer}"
ONE_LAYER = f"{SMALL} swiglu[inner=64]"
WIDE = "d=128 vocab={vocab} init=0.05 embed_scale=true | {mixer} swiglu[inner=256]"
TWO_LAYERS = "d=64 vocab={vocab} init=0.1 embed_scale=true | ({mixer})x2"
RANKS = "decay_rank=8,rate_rank=8,gate_rank=8"
TURNING = "mamba3[state=16,head_dim=8,rotate=1,step_max=1]"
HOLDING = "mamba3[state=16,head_dim=8,rotate=1,turn=held]"
PARITY = (
    "deltanet[head_dim=16,neg_eigval,conv=1]",
    "deltanet[head_dim=16,neg_eigval]",
    "deltanet[head_dim=16,conv=1]",
    "mamba2[state=16,head_dim=16]",
    TURNING,
    HOLDING,
    f"rwkv7[head_dim=16,{RANKS},neg_eigval]",
    "attn[heads=2]",
)
#: Without short convolutions, which look a few elements up instead of composing them.
GROUPS = (
    "deltaproduct[head_dim=16,steps=2,conv=1]",
    "deltanet[head_dim=16,neg_eigval,conv=1]",
    "deltaproduct[head_dim=16,steps=4,conv=1]",
    "rwkv7[head_dim=16,neg_eigval]",
)
#: 4,096 numbers of recurrent state per layer each; linear has the sums of its keys besides.
EQUAL_STATE = (
    "deltanet[head_dim=64]",
    "gated-deltanet[head_dim=64]",
    "kda[heads=1,head_dim=64]",
    "mamba2[state=32,head_dim=64]",
    "gla[heads=1,conv=4]",
    "gla[heads=1]",
    "linear[heads=1,canon=b]",
)
#: What a look at the neighbours is worth to a mixer that has none: the quick probe's recall and copying.
NEAR = ("gla[heads=4]", "gla[heads=4,conv=4]", "gla[heads=4,canon=a]", "gla[heads=4,canon=ab]")
QUICK = "d=32 vocab={vocab} init=0.15 embed_scale=true | ({mixer} swiglu[inner=80])x2"
SETS: dict[str, Set] = {
    "recall": Set("in-context-recall", {"vocab": "16", "length": "48"}, NEAR, QUICK, 800, 16, 6e-3, lengths=()),
    "noisy-recall": Set("noisy-in-context-recall", {"vocab": "12", "length": "48", "noise_vocab": "4"}, NEAR, QUICK,
                        800, 16, 6e-3, lengths=()),
    "copying": Set("selective-copying", {"vocab": "8", "length": "32", "to_copy": "4"}, NEAR, QUICK, 800, 16, 6e-3,
                   lengths=()),
    "parity": Set("parity", {"length": "32"}, PARITY, ONE_LAYER, 800, 32, 1e-2),
    "s3": Set("word-problem", {"length": "16", "group": "S3"}, GROUPS, ONE_LAYER, 1200, 64, 5e-3),
    "s3-small": Set("word-problem", {"length": "16", "group": "S3"}, GROUPS[:2], WIDE, 700, 128, 2e-3),
    "s3-narrow": Set("word-problem", {"length": "16", "group": "S3"}, GROUPS[:2], NARROW, 600, 64, 3e-3),
    "s3-wide": Set("word-problem", {"length": "32", "group": "S3"}, GROUPS, WIDE, 4000, 256, 2e-3),
    "a5": Set("word-problem", {"length": "32", "group": "A5"}, GROUPS, WIDE, 4000, 256, 2e-3),
    "s5": Set("word-problem", {"length": "32", "group": "S5"}, GROUPS, WIDE, 4000, 256, 2e-3),
    "palindrome": Set("palindrome", {"length": "24", "vocab": "8"}, (*EQUAL_STATE, "attn[heads=2]"), TWO_LAYERS,
                      800, 32, 5e-3, lengths=(2,)),
    "mqar-small": Set("mqar", {"vocab": "64", "length": "64", "pairs": "8"}, (*EQUAL_STATE, "attn[heads=2]"),
                      TWO_LAYERS, 800, 32, 5e-3, lengths=(2,)),
    "mqar": Set("mqar", {"vocab": "256", "length": "128", "pairs": "32"}, EQUAL_STATE, TWO_LAYERS, 3000, 64, 3e-3,
                lengths=(), lrs=(1e-3, 3e-3, 1e-2)),
}  # fmt: skip

#: Task → its quick settings and whether some small model learns it: the mixers beside which one would expect it.
LOOKING = ("attn[heads=2,canon=ab]", "attn[heads=2]", "deltanet[head_dim=16]")
DEEP = "d=64 vocab={vocab} init=0.1 embed_scale=true | ({mixer} swiglu[inner=128])x4"
LEARN: dict[str, tuple[dict[str, str], tuple[str, ...], str, int, int]] = {
    "mqar": ({"vocab": "64", "length": "64", "pairs": "8"}, LOOKING, DEEP, 3000, 64),
    "forgetting-mqar": ({"vocab": "64", "length": "64", "pairs": "8", "updates": "4"}, LOOKING, DEEP, 3000, 64),
    "compositional-mqar": ({"vocab": "96", "length": "48", "side": "2"}, LOOKING, DEEP, 3000, 64),
    "palindrome": ({"vocab": "8", "length": "24"}, LOOKING, DEEP, 3000, 64),
    "copy": ({"vocab": "8", "length": "24"}, LOOKING, DEEP, 3000, 64),
    "ngram-lookup": ({"vocab": "10", "length": "24", "n": "3"}, LOOKING, DEEP, 3000, 64),
    "stack": ({"vocab": "8", "length": "48", "stacks": "4"}, LOOKING, DEEP, 3000, 64),
    "phonebook": ({"vocab": "64", "length": "32", "digits": "3"}, LOOKING, DEEP, 3000, 64),
    "markov": ({"vocab": "5", "length": "64"}, LOOKING, DEEP, 3000, 64),
    "regbench": (
        {"vocab": "8", "length": "64", "nodes": "6", "string": "12", "train_size": "40000"},
        LOOKING,
        DEEP,
        3000,
        64,
    ),
    "depo": (
        {"vocab": "128", "length": "32", "hops": "2", "queries": "4", "train_size": "40000"},
        LOOKING,
        DEEP,
        6000,
        64,
    ),
    "mano": ({"vocab": "5", "length": "8", "train_size": "40000"}, LOOKING, DEEP, 6000, 64),
    "modular-arithmetic": ({"length": "12"}, ("deltanet[head_dim=16,neg_eigval]", *LOOKING[:1]), DEEP, 6000, 64),
}
SETS |= {
    f"learn-{task}": Set(task, settings, mixers, spec, steps, batch, 3e-3, lrs=(1e-3, 3e-3))
    for task, (settings, mixers, spec, steps, batch) in LEARN.items()
}
#: The group tasks, from many more sequences: the same few again would be learnt by heart.
SETS |= {
    f"learn-{group}": Set("word-problem", {"length": "16", "group": group, "train_size": "100000"}, GROUPS[::2], WIDE,
                          4000, 256, 2e-3, lrs=(1e-3, 3e-3))
    for group in ("A5", "S5")
}  # fmt: skip

#: Groups from the smallest to the largest. With an MLP behind the mixer one layer can look the product of two tokens up
#: instead of composing it, which is learnt first and leads nowhere; without one the state has to hold the product.
PLAIN = "d=128 vocab={vocab} init=0.05 embed_scale=true | {mixer}"
DEPTH_2 = "d=128 vocab={vocab} init=0.05 embed_scale=true | ({mixer} swiglu[inner=256])x2"
TWO_TURNS, FOUR_TURNS = GROUPS[0], GROUPS[2]
SETS |= {
    f"{group}-{shape}{'' if short_first else '-whole'}": Set(
        "word-problem", {"length": "16", "group": group, "train_size": "200000"}, mixers, spec, 12_000, 512, 2e-3,
        lrs=(1e-3, 3e-3, 8e-3), short_first=short_first)
    for group, mixers in (
        ("S3", (TWO_TURNS,)), ("A4", (TWO_TURNS,)), ("S4", (TWO_TURNS, FOUR_TURNS)), ("A5", (TWO_TURNS, FOUR_TURNS)),
        ("S5", (FOUR_TURNS, TWO_TURNS)))
    for shape, spec in (("plain", PLAIN), ("mlp", WIDE), ("two", DEPTH_2))
    for short_first in (True, False)
}  # fmt: skip
#: Long sequences, of which the product of the first two elements is a small part; short ones, which a few layers of
#: attention can look up pair by pair.
SETS |= {
    f"{group}-long-{shape}": Set(
        "word-problem", {"length": "64", "group": group, "train_size": "200000"}, mixers, spec, 8000, 512, 2e-3,
        lengths=(2, 4), lrs=(1e-3, 3e-3), short_first=False)
    for group, mixers in (("A5", (TWO_TURNS,)), ("S5", (FOUR_TURNS,)))
    for shape, spec in (("plain", PLAIN), ("mlp", WIDE))
}  # fmt: skip
SETS |= {
    f"{group}-short": Set(
        "word-problem", {"length": length, "group": group, "train_size": "200000"}, ("attn[heads=4]",),
        "d=128 vocab={vocab} init=0.05 embed_scale=true | ({mixer} swiglu[inner=512])x4", 8000, 512, 1e-3,
        lengths=(2,), lrs=(5e-4, 1e-3, 2e-3), short_first=False, solved=0.995)
    for group, length in (("A5", "6"), ("S5", "4"))
}  # fmt: skip
SETS |= {
    # Weight decay bounds the logits, so that the loss goes on pulling an angle that is almost right.
    "parity-angle": Set("parity", {"length": "32", "train_size": "100000"}, (TURNING,), ONE_LAYER, 10_000, 64, 5e-3,
                        lrs=(2e-3, 5e-3, 1e-2), decays=(0.0, 0.1, 1.0)),
    # Without an MLP, which could read a parity off two turns that are both wrong.
    "parity-plain": Set("parity", {"length": "32", "train_size": "100000"}, (TURNING, HOLDING), SMALL, 4000, 64, 5e-3,
                        lrs=(4e-3, 1e-2)),
    "parity-64": Set("parity", {"length": "64", "train_size": "50000"}, (TURNING, HOLDING), ONE_LAYER, 4000, 64, 4e-3),
    "parity-long": Set("parity", {"length": "128", "train_size": "50000"}, (TURNING,), ONE_LAYER, 6000, 32, 5e-3,
                       lengths=(2, 4), lrs=(2e-3, 5e-3, 1e-2), decays=(0.0, 0.1)),
}  # fmt: skip
#: 1,024 numbers of state per layer each (linear has the sums of its keys besides) for 32 pairs, and a convolution of
#: width 4 before the keys and values of every mixer: what is compared is how the state is written and read.
TIGHT_STATE = (
    "deltanet[head_dim=32]",
    "mamba2[expand=1,state=32,head_dim=32]",
    "gla[heads=1,conv=4]",
    "linear[heads=1,canon=b]",
    "gated-deltanet[head_dim=32]",
    "retnet[heads=1,expand_v=1,canon=a]",
    "kda[heads=1,head_dim=32]",
    "deltaproduct[head_dim=32,steps=2]",
)
TIGHT = "d=32 vocab={vocab} init=0.15 embed_scale=true | ({mixer})x2"
RATES = (1e-3, 3.2e-3, 1e-2, 3.2e-2)
SETS["mqar-tight"] = Set("mqar", {"vocab": "256", "length": "128", "pairs": "32", "train_size": "50000"}, TIGHT_STATE,
                         TIGHT, 2000, 64, 3e-3, lengths=(), lrs=RATES)  # fmt: skip
#: Tasks that no control had solved: four layers of attention, and as many different sequences as there are.
FOUR_LAYERS = "d=128 vocab={vocab} init=0.05 embed_scale=true | ({mixer} swiglu[inner=256])x4"
SETS |= {
    f"solve-{name}": Set(task, settings, (mixer,), FOUR_LAYERS, 12_000, 256, 1e-3, lengths=(2,), lrs=(5e-4, 1e-3),
                         decays=(0.0, 0.1), solved=0.995)
    for name, task, settings, mixer in (
        ("mano-3", "mano", {"vocab": "3", "length": "10", "train_size": "60000"}, "attn[heads=4]"),
        ("mano-5", "mano", {"vocab": "5", "length": "8", "train_size": "60000"}, "attn[heads=4]"),
        ("brackets-3", "modular-arithmetic",
         {"vocab": "3", "length": "18", "brackets": "1", "train_size": "60000"}, "attn[heads=4]"),
        ("brackets-5", "modular-arithmetic",
         {"vocab": "5", "length": "14", "brackets": "1", "train_size": "60000"}, "attn[heads=4]"),
        ("arithmetic-5", "modular-arithmetic", {"vocab": "5", "length": "12", "train_size": "100000"}, "attn[heads=4]"),
        ("depo", "depo", {"vocab": "128", "length": "32", "hops": "2", "queries": "4", "train_size": "60000"},
         "attn[heads=4,canon=ab]"),
        ("regbench", "regbench",
         {"vocab": "8", "length": "64", "nodes": "6", "string": "12", "train_size": "40000"},
         "attn[heads=4,canon=ab]"),
    )
}  # fmt: skip


def split(examples: list[Examples]) -> Split:
    several = examples[0].allowed_NTK is not None
    parts = ("inputs_NT", "targets_NT", *(["allowed_NTK"] if several else []))
    return Split(*(torch.from_numpy(np.stack([getattr(e, part) for e in examples])) for part in parts))


class Eager(Fleet):
    """Step by step, without a compiled graph, for what cannot be captured."""

    def _make_stepper(self) -> Stepper:
        made = super()._make_stepper()
        made.captured = False
        return made


class Captured(Fleet):
    """One graph of our kernels and torch's operations, all replicas at once: no compiler to wait for."""

    def _make_stepper(self) -> Stepper:
        made = super()._make_stepper()
        made._compiled = False
        return made


class Plain(Captured):
    """The same of plain operations: torch's fused attention goes through stacked replicas one by one."""

    def advance(self, steps: int) -> torch.Tensor:
        with plain_ops():
            return super().advance(steps)


class OneByOne(Fleet):
    """The same, replicas one after the other."""

    def _make_stepper(self) -> Stepper:
        super()._make_stepper()
        return Stepper(self, compiled=False)


PATHS: dict[str, type[Fleet]] = {
    "compiled": Fleet,
    "captured": Captured,
    "plain": Plain,
    "one-by-one": OneByOne,
    "eager": Eager,
}


def run(
    name: str, mixer: str, given: argparse.Namespace, kind: type[Fleet], until: float | None, deadline: float | None
) -> dict[str, Any]:
    """Accuracies by length, one per seed, at the best learning rate and weight decay. `until`: train for fewer steps
    than the set's if that is what the time is enough for. `deadline`: what is not done then is scored as it is."""
    chosen = SETS[name]
    task = baseline(chosen.task).with_settings(chosen.settings)
    seeds, steps = range(given.first_seed, given.first_seed + given.seeds), given.steps or chosen.steps
    points = [(lr, decay) for lr in given.lrs or chosen.lrs or (chosen.lr,) for decay in given.decays or chosen.decays]
    data = [make_data(task, seed, evaluation=128) for seed in seeds]
    longer = {str(n): split([draw(task.longer(n), seed, "test", 128) for seed in seeds]) for n in chosen.lengths}
    # Rates are chosen on other sequences than the ones reported, at the length that is asked about.
    selection = {SELECTION: split([draw(task.longer(4), seed, "validation", 128) for seed in seeds])}
    others = longer | (selection if 4 in chosen.lengths and task.prefixes else {})
    arch = architecture(chosen.spec.format(vocab=task.model_vocab, mixer=mixer))
    began, worked = time.perf_counter(), time.process_time()
    fleet = kind(
        arch,
        [Member(lr, decay, seed, data) for lr, decay in points for data, seed in enumerate(seeds)],
        Plan(
            steps,
            chosen.batch,
            -(-steps // EVALUATIONS),
            solved=chosen.solved or 2.0,
            curriculum=curriculum(task) if chosen.short_first else (),
        ),
        *(split([one.split(part) for one in data]) for part in ("train", "validation", "test")),
        device=given.device,
        others=others,
    )
    if until and steps > 4 * FIT:
        steps = fit_steps(fleet, until, steps)
    records = trained(fleet, deadline)
    by_point = {
        point: [record for record in records if (record.member.lr, record.member.weight_decay) == point]
        for point in points
    }
    means = {point: float(np.mean([selected_by(record) for record in some])) for point, some in by_point.items()}
    best = max(means, key=lambda point: means[point])
    records = by_point[best]
    found = {"1": [record.test[0] if record.test else 0.0 for record in records]}
    return {
        "set": name,
        "task": {"task": chosen.task, **chosen.settings},
        "mixer": mixer,
        "seeds": list(seeds),
        "steps": fleet.step,
        "of": steps,
        "batch": chosen.batch,
        "lr": best[0],
        "weight_decay": best[1],
        "validation by point": [[*point, mean] for point, mean in means.items()],
        "replicas": [
            {
                "lr": record.member.lr,
                "weight_decay": record.member.weight_decay,
                "seed": record.member.seed,
                "steps": record.steps,
                "training loss": record.losses[-1][1] if record.losses else None,
                "validation": [[step, round(accuracy, 4)] for step, accuracy, _ in record.validation],
                "accuracy": {"1": record.test[0] if record.test else 0.0, **record.others},
            }
            for some in by_point.values()
            for record in some
        ],
        "spec": chosen.spec,
        "exact": {n: [record.exact[n] for record in records] for n in ("test", *longer)},
        "params": decoder_params(arch),
        "state": total_state(arch),
        "accuracy": {**found, **{n: [record.others[n] for record in records] for n in longer}},
        "chance": chance(data[0].test),
        "seconds": round(time.perf_counter() - began, 1),
        "cpu_seconds": round(time.process_time() - worked, 1),
        "path": next(path for path, one in PATHS.items() if one is kind) if fleet.device.type == "cuda" else "eager",
        "provenance": provenance_of(time.time(), time.perf_counter() - began),
    }


def selected_by(record: MemberRecord) -> float:
    """Validation accuracy: at four times the length of training where that is what a set asks about."""
    return record.others.get(SELECTION, record.validation[-1][1])


def trained(fleet: Fleet, deadline: float | None) -> list[MemberRecord]:
    """To the end of the plan, or scored as it is when the time is up: a process that is killed in the middle of a
    kernel takes all others that share the GPU with it."""
    while fleet.step < fleet.plan.steps and any(record.stopped == "running" for record in fleet.records):
        if deadline and time.time() > deadline:
            fleet._evaluate(torch.zeros(len(fleet.alive)))
            fleet._finish(range(len(fleet.alive)), "out of time")
            return fleet.records
        fleet.run(until=fleet.step + CHECKED)
        if fleet.device.type == "cuda":
            torch.cuda.synchronize()
    return fleet.records


def fit_steps(fleet: Fleet, until: float, most: int) -> int:
    """Set the plan's steps to what there is time for, `most` at most."""
    fleet.advance(FIT)
    float(fleet.params[next(iter(fleet.params))].sum())
    began = time.perf_counter()
    fleet.advance(FIT)
    float(fleet.params[next(iter(fleet.params))].sum())
    each = (time.perf_counter() - began) / FIT
    steps = min(most, 2 * FIT + max(FIT, int((until - time.time() - SCORING) / each)))
    fleet.plan = dataclasses.replace(fleet.plan, steps=steps, eval_every=-(-steps // EVALUATIONS))
    fleet._steps.fill_(float(steps))
    return steps


def page(rows: list[dict[str, Any]]) -> str:
    """One table per set: the mean at every length, every seed and the interval at 4 times it, and at the longest the
    share of what is to be had beyond chance."""
    text = [
        "# State tracking and recall at equal state",
        "",
        str(__doc__).split("\n\n")[2].strip(),
        "",
        versions(rows),
        "",
    ]
    for name in dict.fromkeys(row["set"] for row in rows):
        mine = together([row for row in rows if row["set"] == name])
        first = mine[0]
        said = ", ".join(f"{key}={value}" for key, value in first["task"].items() if key != "task")
        spec = SETS[name].spec.replace("{vocab} ", "… ")
        text += [f"## {name}: {first['task']['task']}, {said}", "", f"`{spec}`, batch {first['batch']}.", ""]
        lengths = list(first["accuracy"])
        told = "4" if "4" in lengths and not name.startswith("learn-") else "1" if "4" in lengths else lengths[-1]
        heads = " | ".join(f"{n}×" for n in lengths)
        text += [
            f"| mixer | state | steps | lr | {heads} | {told}×, by seed | {told}×, 95 % | chance "
            f"| scaled, {lengths[-1]}× | CPU s | where |",
            "|" + "---|" * (10 + len(lengths)),
        ]
        for row in mine:
            ends = interval(np.array(row["accuracy"][told]))
            means = " | ".join(f"{np.mean(row['accuracy'][n]):.3f}" for n in lengths)
            by_seed = ", ".join(f"{value:.3f}" for value in row["accuracy"][told])
            scaled = (np.mean(row["accuracy"][lengths[-1]]) - row["chance"]) / (1 - row["chance"])
            steps = (
                f"{row['steps']}" if row["steps"] == row.get("of", row["steps"]) else f"{row['steps']} of {row['of']}"
            )
            decay = f", decay {row['weight_decay']:g}" if row.get("weight_decay") else ""
            spent = f"{row['cpu_seconds']:.0f}" if row["where"].startswith("CPU") and "cpu_seconds" in row else ""
            text.append(
                f"| `{row['mixer']}` | {row['state']:,} | {steps} | {row['lr']:g}{decay} | {means} | {by_seed} "
                f"| {ends} | {row['chance']:.2f} | {scaled:.2f} | {spent} | {row['where']} |"
            )
        text += ["", *at_equal_steps(mine)]
    return "\n".join(text)


def at_equal_steps(rows: list[dict[str, Any]]) -> list[str]:
    """Where trainings of one set were cut short at different steps: validation accuracies when all had taken as many,
    the best first, and how far each is above the next, paired by seed."""
    curves = {row["mixer"]: [one for one in row["replicas"] if one.get("validation")] for row in rows}
    if len(rows) < 2 or len({row["steps"] for row in rows}) == 1 or not all(curves.values()):
        return []
    common = set.intersection(*({step for step, _ in one["validation"]} for some in curves.values() for one in some))
    if not common:
        return []
    step = max(common)
    best: dict[str, tuple[float, np.ndarray]] = {}
    for mixer, some in curves.items():
        by_rate: dict[float, list[float]] = {}
        for one in sorted(some, key=lambda one: one["seed"]):
            by_rate.setdefault(one["lr"], []).append(dict(one["validation"])[step])
        lr = max(by_rate, key=lambda lr: float(np.mean(by_rate[lr])))
        best[mixer] = lr, np.array(by_rate[lr])
    order = sorted(best, key=lambda mixer: -best[mixer][1].mean())
    text = [
        f"After {step} steps of all:",
        "",
        "| mixer | lr | validation | 95 % | by seed | above the next |",
        "|---|---|---|---|---|---|",
    ]
    for mixer, following in zip(order, [*order[1:], None], strict=True):
        lr, values = best[mixer]
        lead = "" if following is None else interval(values - best[following][1])
        by_seed = ", ".join(f"{value:.3f}" for value in values)
        text.append(f"| `{mixer}` | {lr:g} | {values.mean():.3f} | {interval(values)} | {by_seed} | {lead} |")
    return [*text, ""]


def interval(values: np.ndarray) -> str:
    ends = estimate(values).interval
    return "" if ends is None else "{:.2f} to {:.2f}".format(*ends)


def together(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Seeds that were trained in processes of their own as one row."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for row in sorted(rows, key=lambda row: row.get("seeds", [0])[0]):
        key = (
            row["mixer"],
            row["steps"],
            row["lr"],
            row["where"],
            row.get("seeds", [0])[0] if len(row["accuracy"]["1"]) > 1 else "",
        )
        if key not in merged:
            merged[key] = row
            continue
        held = merged[key]
        held["accuracy"] = {n: [*values, *row["accuracy"][n]] for n, values in held["accuracy"].items()}
        held["cpu_seconds"] = held.get("cpu_seconds", 0) + row.get("cpu_seconds", 0)
    return list(merged.values())


def versions(rows: list[dict[str, Any]]) -> str:
    found = {
        f"{one['gpu'] if row['where'] == 'H200' else one['cpu']}: plait {one['plait']}, torch {one['torch']}, Python "
        f"{one['python']}"
        for row in rows
        for one in [row["provenance"]]
    }
    return "; ".join(sorted(found)) + "."


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("sets", nargs="+", metavar="SET", help=f"page FILE …, or of {', '.join(SETS)}")
    asked.add_argument("--only", action="append")
    asked.add_argument("--steps", type=int)
    asked.add_argument("--lrs", type=lambda text: tuple(float(one) for one in text.split("/")))
    asked.add_argument("--decays", type=lambda text: tuple(float(one) for one in text.split("/")))
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--first-seed", type=int, default=0)
    asked.add_argument("--device", default="cpu")
    asked.add_argument("--until", type=float, help="seconds since 1970: trainings are as long as there is time for")
    asked.add_argument("--deadline", type=float, help="seconds since 1970: what is not done then is scored as it is")
    asked.add_argument("--precision", choices=("fp32", "tf32"), default="fp32", help="of matrix products on a GPU")
    asked.add_argument("--path", choices=list(PATHS), default="compiled", help="on a GPU")
    asked.add_argument("--where", default="")
    asked.add_argument("--out", type=Path)
    given = asked.parse_args()
    if given.sets[0] == "page":
        lines = [
            line for file in given.sets[1:] for line in Path(file).read_text(encoding="utf-8").splitlines() if line
        ]
        text = page([json.loads(line) for line in lines])
        given.out.write_text(text, encoding="utf-8") if given.out else print(text)
        return
    torch.set_num_threads(1)
    # No bf16 on a GPU: of an angle that it rounds, 64 turns are off by most of a radian.
    torch.set_float32_matmul_precision("high" if given.precision == "tf32" else "highest")
    ensemble.precision = ensemble_step.precision = lambda device: torch.autocast(device.type, enabled=False)
    trainings = [(name, mixer) for name in given.sets for mixer in given.only or SETS[name].mixers]
    for i, (name, mixer) in enumerate(trainings):
        if given.deadline and time.time() > given.deadline - 2 * SCORING:
            print(f"no time left for {name} {mixer}", flush=True)
            continue
        until, deadline = (_share(end, len(trainings) - i) for end in (given.until, given.deadline))
        row = run(name, mixer, given, PATHS[given.path], until, deadline)
        row["where"] = given.where
        print(json.dumps({key: value for key, value in row.items() if key not in HIDDEN}), flush=True)
        if given.out:
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(row) + "\n")


def _share(end: float | None, trainings: int) -> float | None:
    """When the first of several trainings has to be done that share the time up to `end`."""
    return time.time() + (end - time.time()) / trainings if end else None


if __name__ == "__main__":
    main()
