"""The configuration of a design, and how its time is divided among the stages.

Each stage gets a share of the remaining time and ends with what it has at its deadline (`Clock`), so a design meets its
deadline on a machine of any load. The search ends after an iteration, measuring after a model, the race after a round,
and the training is shortened. The probe does not influence the choice, so it is the first to be skipped; the race makes
the choice, so it gets the time that earlier stages left over. Decisions are stored: a design that is interrupted and
resumed, with its clock started again, makes the same ones.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from plait.core.errors import UserError
from plait.core.units import parse, parse_duration
from plait.device.quantities import Setting
from plait.records import Store, record_key
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
    """`space` must have the vocabulary of `data` already."""

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
            **self.space.identity(),
        }


KIND = "design-clock"
PROTOCOL = 2
WORTH = 0.5  # smallest fraction of its share that a probe gets; with less it is skipped
LEAST = 0.3  # fraction of their share that the race and the training get, however late it is
PROFILE_MOST = 0.45  # fraction of the total time by which a profile must have the minimum that predictions need
LATE = 1.3  # a training that would take this much longer than its time is shortened


@dataclass(frozen=True)
class Clock:
    """`began`: a value of `time.perf_counter()`. `specs`: of the candidates, once known. `cut`: what was cut for lack
    of time, one phrase per stage."""

    config: DesignConfig
    store: Store
    began: float
    specs: Sequence[str] = ()
    cut: dict[str, str] = field(default_factory=dict)

    @property
    def elapsed(self) -> float:
        return time.perf_counter() - self.began

    @property
    def left(self) -> float:
        """Seconds until the training must start."""
        training = self.config.share("train") if self.config.train_for is None else 0.0
        return self.config.seconds - training - self.elapsed

    @property
    def profile_most(self) -> float:
        """Seconds left for a profile that is not yet complete."""
        return PROFILE_MOST * self.config.seconds - self.elapsed

    def end_of(self, stage: str, of: str = "") -> StageEnd:
        """The deadline of a stage before the probe: its share of the remaining time. `of` identifies what it works
        on."""
        later = STAGES[STAGES.index(stage) : STAGES.index("train")]
        allotted = max(0.0, self.left) * SHARES[stage] / sum(SHARES[name] for name in later)
        return StageEnd(self, stage, of, self.elapsed + allotted)

    def probe(self) -> float:
        """Seconds of the probe: its share, or 0 if too little is left for it and the race."""
        share, room = self.config.share("probe"), self.left - self.config.share("race")
        return self._decided("probe", share if room >= WORTH * share else 0.0)

    def skip_probe(self) -> None:
        """Record that the probe did not fit."""
        self._decided("probe, after its timing", 0.0)

    @property
    def probe_skipped(self) -> bool:
        return self.decision("probe, after its timing") is not None

    def race(self) -> float:
        """Seconds of the race: all that is left before the training."""
        return self._decided("race", max(LEAST * self.config.share("race"), self.left))

    def tokens(self, planned: float, slowdown: float, least: float = 0.0) -> float:
        """Tokens of the training: as `planned`, or fewer if it would take far longer than the remaining time, but not
        fewer than `least`. `slowdown`: how much longer trainings take now than when they were timed."""
        share = self.config.share("train")
        if self.config.train_for is not None:
            return planned
        room = self._decided("train", max(LEAST * share, self.config.seconds - self.elapsed))
        if share * slowdown <= LATE * room:
            return planned
        tokens = max(least, planned * room / (share * slowdown))
        if tokens >= planned:
            return planned
        self.cut["train"] = f"the training got {tokens / planned:.0%} of its tokens".replace("%", " %")
        return tokens

    def decision(self, stage: str, of: str = "") -> float | None:
        """The stored decision of an earlier call."""
        known = self.store.get(record_key(KIND, self._asked(stage, of)))
        return None if known is None else float(known.result["seconds"])

    def _decided(self, stage: str, number: float, of: str = "") -> float:
        """The stored decision, which this call makes if there is none yet."""
        known = self.store.computed(KIND, self._asked(stage, of), lambda: {"seconds": round(number, 1)})
        return float(known.result["seconds"])

    def _asked(self, stage: str, of: str) -> dict[str, object]:
        asked = {"protocol": PROTOCOL, "stage": stage, "config": self.config.as_dict(), "specs": list(self.specs)}
        return {**asked, "of": of} if of else asked


@dataclass(frozen=True)
class StageEnd:
    """When to end an unfinished stage: at `end`, in seconds since the design began, or, when resuming, where an earlier
    call ended it."""

    clock: Clock
    stage: str
    of: str
    end: float

    @property
    def known(self) -> int | None:
        """The number of work items after which the stage was ended, if it was."""
        decided = self.clock.decision(self.stage, self.of)
        return None if decided is None else int(decided)

    def reached(self, done: int) -> bool:
        """Whether to end now, after so many work items."""
        if (known := self.known) is not None:
            return done >= known
        if self.clock.elapsed < self.end:
            return False
        self.clock._decided(self.stage, done, self.of)
        return True
