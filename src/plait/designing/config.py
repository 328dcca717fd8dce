"""What a user wants designed, and how the time is divided over the stages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.device.setting import Setting
from plait.space.constraints import Limits
from plait.space.space import Space

STAGES = ("profile", "search", "measure", "probe", "train")
#: Of the whole time. Fixed, whatever is stored already: a stage's time is part of what its result is found again by.
#: Searching and measuring take what they take, about a tenth and a half; starting up takes the rest.
SHARES = {"profile": 0.22, "probe": 0.39, "train": 0.17}
LEAST_SECONDS = 20.0
#: The probe's tasks, the most telling first: in a short time, a few trained to the end say more than many cut short.
TASKS = (
    *("in-context-recall", "selective-copying", "compression"),
    *("fuzzy-in-context-recall", "noisy-in-context-recall", "memorization"),
)
FEWEST, MOST = 3, 7  # compositions of mixers
COMPOSITION_SECONDS, TASK_SECONDS = 29.0, 58.0  # of the probe's time, for one more composition and one more task

#: Stage, share of it that is done (None: unknown; 1 is said once, at its end), and what is going on.
NEARLY = 0.999
OnProgress = Callable[[str, "float | None", str], object]


@dataclass(frozen=True)
class DesignConfig:
    """`space` has the vocabulary of `data` already: see `with_vocab`."""

    space: Space
    setting: Setting
    limits: Limits
    data: str
    seconds: float
    seed: int = 0
    runs: Path = Path("runs")
    device: str = "cpu"
    workers: int = 2

    def __post_init__(self) -> None:
        if self.seconds < LEAST_SECONDS:
            raise UserError(f"{self.seconds:.0f} s given; a design takes {LEAST_SECONDS:.0f} s at the very least.")

    def share(self, stage: str) -> float:
        """Seconds."""
        return round(SHARES[stage] * self.seconds, 1)

    @property
    def few(self) -> int:
        """Families of mixers that go on to the probe, so that each has a fair share of its time."""
        return max(FEWEST, min(MOST, int(self.share("probe") / COMPOSITION_SECONDS)))

    @property
    def tasks(self) -> tuple[str, ...]:
        """Of the probe."""
        return TASKS[: max(2, int(self.share("probe") / TASK_SECONDS))]

    def as_dict(self) -> dict[str, Any]:
        return {
            "space": self.space.name,
            "limits": self.limits.as_dict(),
            "setting": self.setting.as_dict(),
            "data": self.data,
            "seconds": self.seconds,
            "seed": self.seed,
        }


def with_vocab(space: Space, vocab: int) -> Space:
    """The same space for models that read this many kinds of tokens."""
    if all(header is None or header.vocab == vocab for header in space.headers.all):
        return space
    return type(space)(space.declared.with_vocabulary(vocab))
