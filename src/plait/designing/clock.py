"""The deadlines of a design's stages: each gets a share of the remaining time and ends with what it has by then.

So a design meets its deadline on a machine of any load. The search ends after an iteration, measuring after a model,
the race after a round, and the training is shortened. The probe does not influence the choice, so it is the first to be
skipped; the race makes the choice, so it gets the time that earlier stages left over. Decisions are stored: a design
that is interrupted and resumed, with its clock started again, makes the same ones.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.designing.config import SHARES, STAGES, DesignConfig
from plait.records import Record, Store, provenance_of, record_key

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

    def tokens(self, planned: float, slowdown: float) -> float:
        """Tokens of the training: as `planned`, or fewer if it would take far longer than the remaining time.
        `slowdown`: how much longer trainings take now than when they were timed."""
        share = self.config.share("train")
        if self.config.train_for is not None:
            return planned
        room = self._decided("train", max(LEAST * share, self.config.seconds - self.elapsed))
        if share * slowdown <= LATE * room:
            return planned
        tokens = planned * room / (share * slowdown)
        self.cut["train"] = f"the training got {tokens / planned:.0%} of its tokens".replace("%", " %")
        return tokens

    def decision(self, stage: str, of: str = "") -> float | None:
        """The stored decision of an earlier call."""
        known = self.store.get(record_key(KIND, self._asked(stage, of)))
        return None if known is None else float(known.result["seconds"])

    def _decided(self, stage: str, number: float, of: str = "") -> float:
        """The stored decision, which this call makes if there is none yet."""
        known = self.decision(stage, of)
        if known is None:
            known = round(number, 1)
            result = {"seconds": known}
            self.store.put(Record.of(KIND, self._asked(stage, of), result, provenance_of(time.time(), 0.0)))
        return known

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
