"""The time of a design's stages: each gets a share of what those before it left, and ends with what it has.

So a design ends in time on a machine of any load. The search stops after an iteration, measuring after a model, the
race after a round, and the training is shortened. The probe decides nothing, so it is the first to be left out, and may
use what the stages before left over. What was decided is stored: a design that is interrupted and resumed, with the
clock at its beginning, decides alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from plait.designing.config import SHARES, STAGES, DesignConfig
from plait.records import Record, Store, provenance_of, record_key

KIND = "design-clock"
PROTOCOL = 1
WORTH, MOST = 0.5, 2.0  # of the probe's share: with less there is none, and more it does not get
LEAST = 0.3  # of the race's and the training's share, however late it is
PROFILE_MOST = 0.45  # of all time: by then a profile must have what predictions need at the very least
LATE = 1.3  # a training that would take this much longer than its time is shortened


@dataclass(frozen=True)
class Clock:
    """`began`: as `time.perf_counter` counts. `specs`: of the candidates, once they are known. `cut`: what was ended
    for lack of time, a phrase per stage."""

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
        """Seconds before the training must begin."""
        training = self.config.share("train") if self.config.train_for is None else 0.0
        return self.config.seconds - training - self.elapsed

    @property
    def profile_most(self) -> float:
        """Seconds that are left to a profile that is not yet complete."""
        return PROFILE_MOST * self.config.seconds - self.elapsed

    def end_of(self, stage: str, of: str = "") -> StageEnd:
        """The end of a stage before the probe: its share of the time that is left. `of` identifies what it works on."""
        later = STAGES[STAGES.index(stage) : STAGES.index("train")]
        allotted = max(0.0, self.left) * SHARES[stage] / sum(SHARES[name] for name in later)
        return StageEnd(self, stage, of, self.elapsed + allotted)

    def probe(self) -> float:
        """Seconds of the probe: its share, more if the stages before took less than theirs, or 0 if too little is left
        for it beside the race."""
        share, room = self.config.share("probe"), self.left - self.config.share("race")
        return self._decided("probe", max(share, min(MOST * share, room)) if room >= WORTH * share else 0.0)

    def skip_probe(self) -> None:
        """Note that it did not fit."""
        self._decided("probe, after its timing", 0.0)

    @property
    def probe_skipped(self) -> bool:
        return self.decision("probe, after its timing") is not None

    def race(self) -> float:
        """Seconds of the race: its share, or less."""
        share = self.config.share("race")
        return self._decided("race", min(share, max(LEAST * share, self.left)))

    def tokens(self, planned: float, slowdown: float) -> float:
        """Tokens of the training: as `planned`, or fewer if it would take far longer than the time that is left.
        `slowdown`: how much longer trainings take than when they were timed."""
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
        """What was decided earlier."""
        known = self.store.get(record_key(KIND, self._asked(stage, of)))
        return None if known is None else float(known.result["seconds"])

    def _decided(self, stage: str, number: float, of: str = "") -> float:
        """What was decided first."""
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
    """When a stage ends although it has not done everything: at `end`, in seconds since the design began, or where it
    ended before it was interrupted."""

    clock: Clock
    stage: str
    of: str
    end: float

    @property
    def known(self) -> int | None:
        """After how many pieces of work it ended, if it has."""
        decided = self.clock.decision(self.stage, self.of)
        return None if decided is None else int(decided)

    def reached(self, done: int) -> bool:
        """Whether to end now, after so many pieces of work."""
        if (known := self.known) is not None:
            return done >= known
        if self.clock.elapsed < self.end:
            return False
        self.clock._decided(self.stage, done, self.of)
        return True
