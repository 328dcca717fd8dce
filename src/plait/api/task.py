"""Example sequences of a synthetic task: `plait.task`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from plait.core.errors import UserError
from plait.core.registry import require_known
from plait.core.result import Result

if TYPE_CHECKING:
    from plait.tasks import Task, TaskData

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True)
class Example:
    inputs: tuple[int, ...]
    targets: tuple[int, ...]  # -100 for positions that are not scored


@dataclass(frozen=True)
class TaskResult(Result):
    task: str
    skill: str
    settings: dict[str, Any]
    label: str
    key: str
    model: str  # lm or autoencoder
    model_vocab: int
    input_length: int
    tokens: dict[str, tuple[int, int]]  # kind of token → its first and last id
    grid: tuple[str, ...]  # the settings of a probe
    seed: int
    sequences: dict[str, int]  # by split
    scored_per_sequence: dict[str, float]
    ceiling: float  # the best possible accuracy on the test sequences
    split: str  # of the examples
    examples: tuple[Example, ...]
    of: Task = field(repr=False)  # the task itself

    def rows(self) -> list[dict[str, Any]]:
        return [{"position": i, "input": read, "target": asked, "example": number}
                for number, example in enumerate(self.examples)
                for i, (read, asked) in enumerate(zip(example.inputs, example.targets, strict=True))]  # fmt: skip


def task(
    name: str | Path,
    *,
    settings: Mapping[str, Any] | None = None,
    variant: str = "",
    seed: int = 0,
    split: str = "test",
    examples: int = 3,
) -> TaskResult:
    """Describe a synthetic task, with example sequences.

    name      of a known task (`plait.listing("tasks")`), or your file, my_task.py
    settings  difficulty variables to change, such as {"length": 64}
    variant   paper (the task as its text describes it) or mad-lab (as its code does)
    seed      of the sequences
    split     train, validation or test: where the examples are from
    examples  how many sequences to show

    >>> found = plait.task("selective-copying", examples=1)
    >>> found.skill, len(found.examples)
    ('remember some tokens in order, ignore the rest', 1)
    """
    from plait.tasks import load_task, make_data

    require_known(split, SPLITS, "unknown split")
    changes = dict(settings or {}) | ({"variant": variant} if variant else {})
    data = make_data(load_task(str(name)).with_settings(changes), seed)
    if split != "train":
        _require_valid(data, split, examples)
    chosen, shown = data.task, data.split(split)
    return TaskResult(
        task=chosen.name,
        skill=chosen.skill,
        settings=chosen.settings(),
        label=chosen.label,
        key=chosen.key(),
        model=chosen.model_kind,
        model_vocab=chosen.model_vocab,
        input_length=chosen.input_length,
        tokens={kind: (chosen.ids(kind).start, chosen.ids(kind).stop - 1) for kind in chosen.layout},
        grid=tuple(setting.label for setting in type(chosen)().grid()),
        seed=data.seed,
        sequences={part: len(data.split(part)) for part in SPLITS},
        scored_per_sequence={part: data.split(part).scored / len(data.split(part)) for part in SPLITS},
        ceiling=data.ceiling,
        split=split,
        examples=tuple(
            Example(tuple(shown.inputs_NT[number].tolist()), tuple(shown.targets_NT[number].tolist()))
            for number in range(min(examples, len(shown)))
        ),
        of=chosen,
    )


def _require_valid(data: TaskData, split: str, examples: int) -> None:
    """Check that the task's solver agrees with its generator, which a user's task may violate."""
    drawn = data.split(split)
    for number in range(min(examples, len(drawn))):
        if not data.task.valid(drawn.inputs_NT[number], drawn.targets_NT[number]):
            raise UserError(
                f"{data.task.name}: `answers` does not give the targets of {split} sequence {number} "
                f"(seed {data.seed}); `generate` and `answers` disagree."
            )
