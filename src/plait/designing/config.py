"""The configuration of a design, and how its time is divided among the stages."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.core.units import parse, parse_duration
from plait.device.quantities import Setting
from plait.space.constraints import Limits
from plait.space.space import Space
from plait.workers.pool import Place

STAGES = ("profile", "search", "measure", "probe", "race", "train")
#: Fractions of the total time. Searching and measuring mostly take less than theirs; start-up takes the rest. They do
#: not depend on what is in the store, because the time of a probe or a race is part of the key of its results.
SHARES = {"profile": 0.2, "search": 0.06, "measure": 0.12, "probe": 0.12, "race": 0.33, "train": 0.14}
LEAST_SECONDS = 20.0
#: The probe's tasks, the most informative first: a few complete trainings tell more than many shortened ones.
TASKS = (
    *("in-context-recall", "selective-copying", "compression"),
    *("fuzzy-in-context-recall", "noisy-in-context-recall", "memorization"),
)
FEWEST, MOST = 4, 8  # compositions of mixers
#: Seconds of the race per additional composition, and of the probe per additional task.
COMPOSITION_SECONDS, TASK_SECONDS = 14.0, 30.0

NEARLY = 0.999  # the largest progress reported before a stage has ended
#: Called with the stage, its progress from 0 to 1 (None: unknown; 1 once, at its end), and what it is doing.
OnProgress = Callable[[str, "float | None", str], object]


@dataclass(frozen=True)
class TrainFor:
    """A training budget: so many `tokens`, `flops` or `seconds`."""

    unit: str
    value: float

    @classmethod
    def read(cls, text: str) -> TrainFor:
        """`2h`, `90s`, `1e9 tokens`, `20M tokens`, `1e18 FLOPs`."""
        match = re.fullmatch(r"\s*(\S+?)\s*(tokens?|flops?)\s*", text, re.IGNORECASE)
        if match is None:
            if re.fullmatch(r"[\d.]+M", text.strip()):  # elsewhere this is a duration in minutes; here it is not
                raise UserError(f"--train-for {text}: write '{text} tokens', or {text.lower()} for minutes.")
            try:
                return cls("seconds", parse_duration(text))
            except UserError:
                raise UserError(
                    f"--train-for '{text}': write a time (2h), a number of tokens (20M tokens) or FLOPs (1e18 FLOPs)."
                ) from None
        unit = "tokens" if match[2].lower().startswith("token") else "flops"
        return cls(unit, parse(match[1], "count", "--train-for"))

    @property
    def text(self) -> str:
        """In the form that `read` accepts."""
        return f"{self.value:g}s" if self.unit == "seconds" else f"{self.value:g} {self.unit}"

    def tokens(self, seconds_per_token: float, flops_per_token: float) -> float:
        """The budget in tokens of a model with these costs per token."""
        per_token = {"seconds": seconds_per_token, "flops": flops_per_token, "tokens": 1.0}[self.unit]
        return self.value / per_token


@dataclass(frozen=True)
class DesignConfig:
    """`space` must have the vocabulary of `data` already: see `with_vocab`."""

    space: Space
    setting: Setting
    limits: Limits
    data: str
    seconds: float
    seed: int = 0
    runs: Path = Path("runs")
    place: Place = Place(workers=2)  # noqa: RUF009 (a frozen value); where its trainings run
    train_for: TrainFor | None = None  # None: what is left of `seconds`
    tokenizer: str | None = None  # None: the data's own
    constraints: tuple[str, ...] = ()  # in addition to the limits
    log: tuple[str, ...] = ()  # sinks of its trainings
    space_given: str = ""  # the space as the user named it, which may be a file

    def __post_init__(self) -> None:
        if self.seconds < LEAST_SECONDS:
            raise UserError(f"{self.seconds:.0f} s given; a design takes {LEAST_SECONDS:.0f} s at least.")

    @property
    def device(self) -> str:
        return self.setting.device

    def share(self, stage: str) -> float:
        """Seconds of a stage."""
        return round(SHARES[stage] * self.seconds, 1)

    @property
    def few(self) -> int:
        """How many compositions of mixers enter the race, limited so that each gets enough of its time."""
        return max(FEWEST, min(MOST, int(self.share("race") / COMPOSITION_SECONDS)))

    @property
    def budget(self) -> TrainFor:
        """How long the winner will be trained: the budget at which the race compares candidates."""
        return self.train_for or TrainFor("seconds", self.share("train"))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Tasks of the probe."""
        return TASKS[: max(1, int(self.share("probe") / TASK_SECONDS))]

    def as_dict(self) -> dict[str, Any]:
        return {
            "space": self.space.name,
            "limits": self.limits.as_dict(),
            "setting": self.setting.as_dict(),
            "data": self.data,
            "seconds": self.seconds,
            "seed": self.seed,
            "train_for": self.budget.text,
            **({"tokenizer": self.tokenizer} if self.tokenizer else {}),
            **({"constraints": list(self.constraints)} if self.constraints else {}),
        }


def with_vocab(space: Space, vocab: int) -> Space:
    """The same space with this vocabulary size."""
    if all(header is None or header.vocab == vocab for header in space.headers.all):
        return space
    return type(space)(space.declared.with_vocabulary(vocab))
