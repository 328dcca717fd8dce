"""How an architecture is probed: which settings of the tasks, and how a model is trained on each.

`full` is the protocol of the paper (Poli et al. 2024, arXiv:2403.17844, App. B.2 and Table B.1): 66 settings, a grid of
six learning rates and weight decays on each, 200 epochs. `quick` is for a budget of minutes: one small setting per task
(the table `QUICK`), narrow models, as many seeds as the budget holds.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

from plait import tasks
from plait.core.errors import UserError
from plait.spec import Header
from plait.tasks import Task

#: Raised by hand when results change meaning; part of every result's key.
VERSION = 2


@dataclass(frozen=True)
class Training:
    """How a fleet is trained on one setting. Members are the grid's points, each with initial weights of its own."""

    steps: int
    batch: int
    grid: tuple[tuple[float, float], ...]  # (learning rate, weight decay)
    evaluation: int  # sequences of the validation and of the test split
    eval_every: int
    solved: float | None  # a member with this validation accuracy stops; None: all train to the end
    lengths: tuple[int, ...] = ()  # multiples of the task's length at which the trained models are scored, too
    curriculum: tuple[tuple[float, int], ...] = ()  # (share of the steps, tokens) to learn from up to there
    first_ends: bool = False  # the grid's first point to solve a setting ends the others

    def as_dict(self) -> dict[str, object]:
        """Keys that came later are left out where they say nothing, so that older records keep their identity."""
        further: dict[str, object] = {"lengths": list(self.lengths)} if self.lengths else {}
        if self.curriculum:
            further["curriculum"] = [list(stage) for stage in self.curriculum]
        if self.first_ends:
            further["first_ends"] = True
        later = ("lengths", "curriculum", "first_ends")
        plain = {name: value for name, value in vars(self).items() if name not in later}
        return {**plain, "grid": [list(point) for point in self.grid], **further}


@dataclass(frozen=True)
class Setting:
    """One setting of a task. `given` finds the task again in another process: its name or its file."""

    given: str
    task: Task
    training: Training


@dataclass(frozen=True)
class Protocol:
    """What is run, and what bare mixer names stand for.

    header     of their architectures
    head_dim   of attention
    inner      width of SwiGLU
    state      numbers of fixed state in all, where there is one
    settings   the most telling task first
    """

    name: str
    header: Header
    head_dim: int
    inner: int
    state: int
    settings: tuple[Setting, ...]

    @property
    def d(self) -> int:
        return self.header.d

    @property
    def task_names(self) -> list[str]:
        return list(dict.fromkeys(setting.task.name for setting in self.settings))

    @property
    def runs(self) -> int:
        """Models trained for one architecture and seed."""
        return sum(len(setting.training.grid) for setting in self.settings)

    @property
    def steps(self) -> int:
        """Optimizer steps of all of them, at most."""
        return sum(len(setting.training.grid) * setting.training.steps for setting in self.settings)


# Table B.1
EPOCHS = 200
BATCH = 128
EVALUATION = 1280
LEARNING_RATES = (1e-4, 5e-4, 1e-3)
WEIGHT_DECAYS = (0.0, 0.1)


def full(given: Sequence[str] = (), variant: str = "paper") -> Protocol:
    """The paper's protocol on these tasks (all six, if none is named)."""
    grid = tuple((lr, decay) for lr in LEARNING_RATES for decay in WEIGHT_DECAYS)
    found = []
    for name in given or tasks.SUITES["mad"]:
        for task in _varied(tasks.load_task(name), variant).grid():
            an_epoch = -(-task.train_size // BATCH)
            training = Training(
                EPOCHS * an_epoch, BATCH, grid, EVALUATION, 10 * an_epoch, solved=0.999, first_ends=True
            )
            found.append(Setting(name, task, training))
    return Protocol("full", Header(d=128, vocab=16), 8, 512, 4096, tuple(found))


@dataclass(frozen=True)
class Quick:
    """One row of the quick protocol."""

    settings: dict[str, object]
    steps: int


#: What a budget of minutes is spent on, the most telling first. Why these: docs/howto/probe.md.
QUICK: dict[str, Quick] = {
    "in-context-recall": Quick({"vocab": 16, "length": 48}, steps=600),
    "compression": Quick({"vocab": 8, "length": 8}, steps=600),
    "selective-copying": Quick({"vocab": 8, "length": 32, "to_copy": 4}, steps=400),
    "fuzzy-in-context-recall": Quick({"vocab": 8, "length": 32, "motif": 2}, steps=400),
    "noisy-in-context-recall": Quick({"vocab": 12, "length": 48, "noise_vocab": 4}, steps=600),
    "memorization": Quick({"vocab": 512, "length": 16}, steps=200),
}
#: Scaled embeddings: drawn like the other weights they are drowned by the first layer's output, and attention needs
#: thousands of steps to find out that the token before the present one matters.
QUICK_HEADER = Header(d=32, vocab=16, init=0.15, embed_scale=True)
QUICK_BATCH = 8
QUICK_GRID = ((3e-3, 0.0), (6e-3, 0.0))
QUICK_EVALUATION = 256
QUICK_EVALUATIONS = 4  # of each run
#: Suites beside MAD's: sizes at which mixers differ after minutes on two cores.
QUICK_SUITES: dict[str, Quick] = {
    "parity": Quick({"length": 32}, steps=1200),
    "word-problem": Quick({"length": 16, "group": "S3"}, steps=2000),
    "modular-arithmetic": Quick({"length": 12}, steps=2000),
    "mqar": Quick({"vocab": 64, "length": 64, "pairs": 8}, steps=1200),
    "palindrome": Quick({"vocab": 8, "length": 24}, steps=1200),
    "phonebook": Quick({"vocab": 64, "length": 32, "digits": 3}, steps=1200),
    "stack": Quick({"vocab": 8, "length": 48, "stacks": 4}, steps=1200),
    "forgetting-mqar": Quick({"vocab": 64, "length": 64, "pairs": 8, "updates": 4}, steps=1200),
    "compositional-mqar": Quick({"vocab": 96, "length": 48, "side": 2}, steps=1200),
    "copy": Quick({"vocab": 8, "length": 24}, steps=1200),
    "ngram-lookup": Quick({"vocab": 10, "length": 24, "n": 3}, steps=1200),
    "markov": Quick({"vocab": 5, "length": 64}, steps=1200),
    "regbench": Quick({"vocab": 8, "length": 64, "nodes": 6, "string": 12}, steps=1200),
    "depo": Quick({"vocab": 128, "length": 32, "hops": 2, "queries": 4}, steps=2000),
    "mano": Quick({"vocab": 5, "length": 8}, steps=2000),
}
QUICK_LENGTHS = (2, 4, 8)
#: Where every prefix of a sequence is one of the task's, an eighth of it comes first, then a quarter, then half: learnt
#: from whole sequences alone, whether a seed ever finds the rule is luck.
CURRICULUM = ((0.15, 8), (0.3, 4), (0.5, 2))  # (up to this share of the steps, part of the length)
OWN_TASK = Quick({}, steps=400)  # a user's task, at its own baseline


def quick(given: Sequence[str] = (), variant: str = "paper", *, longer: bool = False) -> Protocol:
    """The protocol for a budget on these tasks (all six, if none is named). `longer`: a user's own are scored at longer
    lengths too, as far as they have any."""
    found = []
    for name in given or QUICK:
        task = _varied(tasks.load_task(name), variant)
        row = QUICK.get(task.name) or QUICK_SUITES.get(task.name, OWN_TASK)
        small = task.with_settings({key: str(value) for key, value in row.settings.items()})
        own = longer and row is OWN_TASK
        lengths = QUICK_LENGTHS if task.name in QUICK_SUITES else _possible(small) if own else ()
        every = -(-row.steps // QUICK_EVALUATIONS)
        stages = curriculum(small) if task.name in QUICK_SUITES else ()
        training = Training(row.steps, QUICK_BATCH, QUICK_GRID, QUICK_EVALUATION, every, None, lengths, stages)
        found.append(Setting(name, small, training))
    return Protocol("quick", QUICK_HEADER, 32, 112, 512, tuple(found))


def curriculum(task: Task) -> tuple[tuple[float, int], ...]:
    """The stages of learning a task, the same for all mixers; none where only whole sequences are sequences."""
    return tuple((share, max(2, task.length // part)) for share, part in CURRICULUM) if task.prefixes else ()


#: What runs beside a candidate on a task suite: attention, which recalls; a decay without a turn; the delta rule, which
#: recalls; and the delta rule that can turn its state over, which tracks.
CONTROLS = ("attn", "mamba2", "deltanet", "deltanet[neg_eigval]")


def suite_tasks(suite: str) -> list[str]:
    """The tasks of a suite other than the paper's; none for a set of architectures."""
    others = {name: list(found) for name, found in tasks.SUITES.items() if name != "mad"}
    return others.get(suite) or ([name for found in others.values() for name in found] if suite == "all" else [])


def _possible(task: Task) -> tuple[int, ...]:
    """The lengths that a user's task can have."""
    found = []
    for factor in QUICK_LENGTHS:
        with suppress(UserError):
            task.longer(factor)
            found.append(factor)
    return tuple(found)


def _varied(task: Task, variant: str) -> Task:
    return task.with_settings({"variant": variant})
