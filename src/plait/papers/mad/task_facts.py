"""The synthetic tasks of Mechanistic Architecture Design (arXiv:2403.17844, App. B.1 and B.2)."""

from __future__ import annotations

from typing import Any

import numpy as np

from plait import tasks
from plait.core.random_streams import stream
from plait.papers.verify import FactTable, tally
from plait.tasks.data import draw
from plait.tasks.memorization import Memorization

facts = FactTable()

# App. B.1's examples, by the name of the task: its setting, what is read, and what is asked for at each token
# ("." nothing). Recall asks a key for the value after it. [b] is written b, [i] i, [c] C; pads are written _.
EXAMPLES: dict[str, tuple[dict[str, Any], dict[str, str], str, str]] = {
    "in-context-recall": ({"vocab": 6, "length": 10}, {"key": "adf", "value": "beg"}, "abdefgabfg", "......b.g."),
    "fuzzy-in-context-recall": (
        {"vocab": 6, "length": 16}, {"key": "adf", "value": "beg", "pad": "_"}, "___adbdafegdafeg", ".............eg.",
    ),
    "noisy-in-context-recall": (
        {"vocab": 6, "length": 12, "noise": 1 / 6, "noise_vocab": 2}, {"key": "adf", "value": "beg", "noise": "hi"},
        "abhdefgiabfg", "........b.g.",
    ),
    "selective-copying": (
        {"vocab": 3, "length": 9, "to_copy": 3}, {"token": "act", "blank": "b", "insert": "i"},
        "acbtbiibi", ".....ac.t",
    ),
    "compression": ({"vocab": 7, "length": 8}, {"token": "abceghi", "compress": "C"}, "aecbhgiC", "aecbhgi."),
    "memorization": (
        {"vocab": 6, "length": 8}, {"key": "ace", "value": "bdf", "insert": "i"}, "aicieiai", ".b.d.f.b",
    ),
}  # fmt: skip


def example_holds(name: str) -> bool:
    """Whether the example is a sequence of the task with these targets, and would not be with one less."""
    setting, letters, read, asked = EXAMPLES[name]
    task = tasks.load(name)(**setting)
    if isinstance(task, Memorization):  # under the seed that draws the example's facts: a:b, c:d, e:f
        task = next(t for t in map(task.seeded, range(1000)) if t.values_K.tolist() == list(t.ids("value")))
    ids = {letter: first for kind, row in letters.items() for first, letter in enumerate(row, task.ids(kind).start)}
    inputs, targets = [ids[letter] for letter in read], [ids.get(letter, tasks.IGNORE) for letter in asked]
    at = next(at for at, target in enumerate(targets) if target != tasks.IGNORE)
    wrong = [*targets[:at], tasks.IGNORE, *targets[at + 1 :]]
    return task.valid(inputs, targets) and not task.valid(inputs, wrong)


@facts.fact("M01", "App. B.1's examples are sequences of the six tasks (B.1.4 prints one [i] too few)")
def task_examples() -> tuple[str, str, bool]:
    good = sum(example_holds(name) for name in EXAMPLES)
    drawn = 0
    for name in tasks.names():
        task = tasks.baseline(name).seeded(0)
        sample = task.generate(stream("M01", name), 50, training=False)
        drawn += sum(task.valid(*item) for item in zip(sample.inputs_NT, sample.targets_NT, strict=True))
    said = f"{good} of 6 examples, {drawn} of 300 drawn sequences"
    return "6 of 6 examples, 300 of 300 drawn sequences", said, (good, drawn) == (6, 300)


@facts.fact(
    "M02", "recall baselines: V 16, half keys; 12,800 × 128; motifs to 3, keys of 3 asked; 20 % of 16 noise tokens"
)
def recall_baselines() -> tuple[str, str, bool]:
    recall, fuzzy, noisy = (tasks.baseline(f"{kind}in-context-recall") for kind in ("", "fuzzy-", "noisy-"))
    halves = {"key": 8, "value": 8}
    layouts = [recall.layout == halves, fuzzy.layout == {**halves, "pad": 1}, noisy.layout == {**halves, "noise": 16}]
    shapes = [tasks.make_data(task, 0).train.inputs_NT.shape == (12_800, 128) for task in (recall, fuzzy, noisy)]
    sample = noisy.generate(stream("M02"), 1000, training=False).inputs_NT
    share = float((sample >= noisy.ids("noise").start).mean())
    motif = fuzzy.settings()["motif"]
    ours = f"{sum(layouts)} of 3 vocabularies, {sum(shapes)} of 3 shapes, motifs to {motif}, noise {share:.1%}"
    good = all(layouts + shapes) and motif == 3 and abs(share - 0.2) < 0.01
    return "3 of 3 vocabularies, 3 of 3 shapes, motifs to 3, noise 20 %", ours, good


@facts.fact("M03", "copying: 16 of 16 tokens in 256; compression: 32 into [c]; memorization: 256 tokens, 256 × 32")
def other_baselines() -> tuple[str, str, bool]:
    wanted = {
        "selective-copying": ("lm", (12_800, 256), {"token": 16, "blank": 1, "insert": 1}, 16),
        "compression": ("autoencoder", (12_800, 32), {"token": 16, "compress": 1}, 31),
        "memorization": ("lm", (256, 32), {"key": 128, "value": 128, "insert": 1}, 16),
    }
    good = 0
    for name, expected in wanted.items():
        data = tasks.make_data(tasks.baseline(name), 0)
        asked = data.test.scored / len(data.test)
        good += (data.task.model_kind, data.train.inputs_NT.shape, data.task.layout, asked) == expected
    return tally(3, 3), tally(good, 3), good == 3


@facts.fact("M04", "difficulty, one variable at a time: 11 + 11 + 14 + 13 + 11 + 6 = 66 settings")
def difficulty() -> tuple[str, str, bool]:
    grids = {name: tasks.baseline(name).grid() for name in tasks.names()}
    base = {name: tasks.baseline(name).settings().items() for name in grids}
    single = all(
        len(s.settings().items() - base[name]) == (i > 0) for name, g in grids.items() for i, s in enumerate(g)
    )
    counts = [len(grid) for grid in grids.values()]
    ours = f"{' + '.join(map(str, counts))} = {sum(counts)}"
    return "11 + 11 + 14 + 13 + 11 + 6 = 66", ours, counts == [11, 11, 14, 13, 11, 6] and single


@facts.fact("M05", "memorization: a fact occurs 32, 16, 8, 4, 2, 1 times in training on average")
def exposure() -> tuple[str, str, bool]:
    rates = [setting.exposure for setting in Memorization().grid()]
    counted = []
    for setting in Memorization().grid():
        keys = draw(setting, 0, "train", setting.train_size).inputs_NT[:, 0::2]
        counted.append(np.bincount(keys.ravel(), minlength=setting.layout["key"]).mean())
    ours = ", ".join(f"{rate:g}" for rate in rates)
    return "32, 16, 8, 4, 2, 1", ours, rates == counted == [32, 16, 8, 4, 2, 1]
