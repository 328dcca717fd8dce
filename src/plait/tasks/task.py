"""The interface of tasks: settings that control the difficulty, and sequences drawn from them.

A task is a frozen dataclass. Its fields are the difficulty variables, its defaults the baseline, and `steps` the
values each variable takes when it alone is made harder (Poli et al. 2024, arXiv:2403.17844, App. B.1 and B.2).

Two variants of each task exist: "paper" follows the paper's text, "mad-lab" the code its authors published, so that
scores can be compared with either. Where they differ, the task's own file says how.

    N  sequences      T  tokens of a sequence

The table of tasks maps names to definitions. A new task is one line here; a user's own task is one file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import numpy as np

from plait.core.errors import UserError, did_you_mean
from plait.core.registry import Table, accept_subclass, read_values, split_path
from plait.core.user_files import class_from_file

IGNORE = -100  # a target that is not scored
VARIANTS = ("paper", "mad-lab")
MOST = 2**30  # maximum of an integer variable
RENAMED_VARIANTS = {"seed": "paper"}  # names of earlier releases

Self = TypeVar("Self", bound="Task")


def stream(*name: Any) -> np.random.Generator:
    """The random generator of this name, whose parts are plain (JSON) data: its numbers do not depend on the process
    or the order in which streams are used."""
    words = json.dumps(name, sort_keys=True).encode()
    entropy = int.from_bytes(hashlib.sha256(words).digest(), "big")
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(entropy)))


@dataclass(frozen=True)
class Examples:
    """Sequences and their targets, `IGNORE` where a position is not scored. If several answers are right,
    `allowed_NTK` has all of them, padded with `IGNORE`; the target is one of them."""

    inputs_NT: np.ndarray
    targets_NT: np.ndarray
    allowed_NTK: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.inputs_NT)

    @property
    def scored(self) -> int:
        """How many positions are scored, all sequences together."""
        return int((self.targets_NT != IGNORE).sum())


@dataclass(frozen=True)
class Task(ABC):
    """One setting of a task. A subclass gives `name`, `layout`, `generate` and `answers`."""

    name: ClassVar[str]
    skill: ClassVar[str] = ""  # what it probes, in a line
    model_kind: ClassVar[str] = "lm"  # or "autoencoder": every token is to be recovered from the last position
    prefixes: ClassVar[bool] = False  # whether prefixes of training sequences are training sequences
    always_answerable: ClassVar[bool] = True  # from the input; False: `ceiling` says how much can be known
    ceiling_by_training: ClassVar[bool] = True  # whether `ceiling` depends on the training sequences
    steps: ClassVar[Mapping[str, Sequence[Any]]] = {}  # variable → its values, one of them the baseline's
    revision: ClassVar[int] = 1  # incremented when the same settings give different sequences

    vocab: int = 16
    length: int = 128
    train_size: int = 12_800
    variant: str = "paper"

    # ---- to be defined by a subclass

    @property
    @abstractmethod
    def layout(self) -> dict[str, int]:
        """The kinds of token and how many there are of each, in the order of their ids."""

    @abstractmethod
    def generate(self, stream: np.random.Generator, count: int, *, training: bool) -> Examples:
        """`count` sequences, all drawn from `stream`. Training may score more positions than evaluation."""

    @abstractmethod
    def answers(self, inputs: Sequence[int]) -> list[int] | None:
        """The targets of one evaluation sequence, computed from its input alone, independently of `generate`; None if
        the input is not a sequence of this task."""

    def check(self) -> None:  # noqa: B027 (not every task has one)
        """Raise `UserError` for a setting under which no sequence can be drawn."""

    def seeded(self: Self, seed: int) -> Self:
        """The task with what all splits of one seed have in common (for memorization: its facts)."""
        return self

    def ceiling(self, train: Examples, test: Examples) -> float:
        """The best expected accuracy on `test` of a model that has memorised `train`."""
        return 1.0

    # ---- the same for all tasks

    def __post_init__(self) -> None:
        for f in dataclasses.fields(self):
            value = getattr(self, f.name)
            if isinstance(f.default, int) and (not isinstance(value, int) or isinstance(value, bool) or value < 0):
                raise UserError(f"{self.name}: {f.name}={str(value)[:40]} given, but it is a whole number, 0 or more.")
            if isinstance(f.default, int) and not isinstance(value, bool) and value > MOST:
                raise UserError(f"{self.name}: {f.name}={str(value)[:40]} given, but it is at most {MOST:,}.")
        if self.variant not in VARIANTS:
            renamed = RENAMED_VARIANTS.get(str(self.variant))
            near = f" Did you mean '{renamed}'?" if renamed else did_you_mean(str(self.variant), VARIANTS)
            raise UserError(f"unknown variant '{self.variant}'.{near} Known: {', '.join(VARIANTS)}.")
        self.require(self.train_size >= 1, "train_size", "at least 1")
        self.check()

    def require(self, holds: bool, variable: str, allowed: str) -> None:
        """Raise a `UserError` unless `holds`; `allowed` states the values that `variable` may have."""
        if not holds:
            raise UserError(f"{self.name}: {variable}={getattr(self, variable)} given, but it must be {allowed}.")

    @property
    def as_mad_lab(self) -> bool:
        return self.variant == "mad-lab"

    @property
    def input_length(self) -> int:
        return self.length

    @property
    def model_vocab(self) -> int:
        """The number of token ids, including special tokens."""
        return sum(self.layout.values())

    @property
    def dtype(self) -> type[np.signedinteger[Any]]:
        return np.int16 if self.model_vocab <= np.iinfo(np.int16).max else np.int32

    def ids(self, kind: str) -> range:
        """The ids of one kind of token."""
        first = 0
        for name, size in self.layout.items():
            if name == kind:
                return range(first, first + size)
            first += size
        raise KeyError(kind)

    def describe_token(self, token: int) -> str:
        """The kind of a token: key, value, noise, blank, …"""
        for kind in self.layout:
            if token in self.ids(kind):
                return kind
        raise UserError(f"{self.name} has no token {token}; its ids are 0 to {self.model_vocab - 1}.")

    def valid(self, inputs: Sequence[int], targets: Sequence[int]) -> bool:
        """Whether this is an evaluation sequence of the task with the right targets."""
        return self.answers([int(token) for token in inputs]) == [int(token) for token in targets]

    def grid(self: Self) -> list[Self]:
        """This setting, then every step of every variable, with the others unchanged."""
        harder = [{name: value} for name, values in self.steps.items() for value in values]
        return list(dict.fromkeys([self, *(replace(self, **change) for change in harder)]))

    def longer(self: Self, factor: int) -> Self:
        """The same task on sequences `factor` times as long."""
        return self if factor == 1 else replace(self, length=factor * self.length)

    def settings(self) -> dict[str, Any]:
        """Variable → value."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.metadata.get("setting", True)}

    def with_settings(self: Self, settings: Mapping[str, str]) -> Self:
        """The task with variables changed, given as text (`--set length=256`)."""
        kinds = {name: type(value) for name, value in self.settings().items()}
        return replace(self, **read_values(settings, kinds, self.name, "variable"))

    def as_dict(self) -> dict[str, Any]:
        """Everything that determines the sequences, except the seed, as plain data."""
        revised = {"revision": self.revision} if self.revision > 1 else {}
        return {"task": self.name, **self.settings(), **revised}

    def key(self) -> str:
        """The setting's identity: a hash that changes with any variable."""
        return hashlib.sha256(json.dumps(self.as_dict(), sort_keys=True).encode()).hexdigest()[:16]

    @property
    def label(self) -> str:
        """What differs from the baseline: 'length=256', or 'baseline'."""
        usual = {f.name: f.default for f in dataclasses.fields(self)}
        changed = [f"{n}={v}" for n, v in self.settings().items() if v != usual[n] and n != "variant"]
        return " ".join(changed) or "baseline"


TASKS: Table[type[Task]] = Table(
    "task",
    {
        "in-context-recall": "plait.tasks.recall:InContextRecall",
        "fuzzy-in-context-recall": "plait.tasks.fuzzy:FuzzyInContextRecall",
        "noisy-in-context-recall": "plait.tasks.recall:NoisyInContextRecall",
        "selective-copying": "plait.tasks.copying:SelectiveCopying",
        "compression": "plait.tasks.compression:Compression",
        "memorization": "plait.tasks.memorization:Memorization",
        "parity": "plait.tasks.tracking:Parity",
        "modular-arithmetic": "plait.tasks.tracking:ModularArithmetic",
        "word-problem": "plait.tasks.tracking:WordProblem",
        "mqar": "plait.tasks.mqar:Mqar",
        "forgetting-mqar": "plait.tasks.mqar:ForgettingMqar",
        "compositional-mqar": "plait.tasks.mqar:CompositionalMqar",
        "palindrome": "plait.tasks.lookup:Palindrome",
        "stack": "plait.tasks.lookup:Stack",
        "phonebook": "plait.tasks.lookup:Phonebook",
        "copy": "plait.tasks.strings:Copy",
        "ngram-lookup": "plait.tasks.strings:NgramLookup",
        "markov": "plait.tasks.markov:Markov",
        "regbench": "plait.tasks.regbench:RegBench",
        "depo": "plait.tasks.reasoning:Depo",
        "mano": "plait.tasks.reasoning:Mano",
    },
    group="plait.tasks",
    accept=accept_subclass("plait.tasks.task:Task"),
    hint=", or a .py file",
)
names, load = TASKS.names, TASKS.load

#: Tasks that are probed together. `mad` is the paper's protocol, independent of tasks added to the table.
SUITES: dict[str, tuple[str, ...]] = {
    "mad": (
        "in-context-recall",
        "fuzzy-in-context-recall",
        "noisy-in-context-recall",
        "selective-copying",
        "compression",
        "memorization",
    ),
    "tracking": ("parity", "word-problem", "modular-arithmetic"),
    "recall": (
        "mqar",
        "palindrome",
        "phonebook",
        "stack",
        "forgetting-mqar",
        "compositional-mqar",
        "copy",
        "ngram-lookup",
    ),
    "language": ("markov", "regbench", "depo", "mano"),
}


def baseline(name: str) -> Task:
    """A task at its baseline setting."""
    return TASKS.load(name)()


def load_task(name: str) -> Task:
    """The baseline of a task of the table, or of a user's: `my_task.py`, `my_task.py:Class`."""
    file = split_path(name)
    if file is None:
        return baseline(name)
    path, attribute = file
    task_class = class_from_file(path, Task, attribute)  # type: ignore[type-abstract]
    missing = ", ".join(sorted(task_class.__abstractmethods__))
    if missing:
        raise UserError(f"{path}: {task_class.__name__} does not define {missing}.")
    if not isinstance(getattr(task_class, "name", None), str):
        raise UserError(f"{path}: {task_class.__name__} has no `name`; add it as a class attribute.")
    if task_class.name in TASKS:
        raise UserError(f"{path}: the name '{task_class.name}' is taken by a built-in task; choose another.")
    try:
        return task_class()
    except UserError:
        raise
    except Exception as wrong:
        raise UserError(f"{path}: {task_class.__name__}() fails: {type(wrong).__name__}: {wrong}") from wrong
