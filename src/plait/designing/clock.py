"""The time of a design's stages, on a machine that may be busy: what is left after those before.

The probe decides nothing, so it is the first to be left out, and may use what the stages before left over. The race
gets what is left before the training. What was decided is stored: a design that is interrupted and resumed, with the
clock at its beginning, decides alike.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from plait.designing.config import DesignConfig
from plait.records import Record, Store, provenance_of, record_key

KIND = "design-clock"
PROTOCOL = 1
WORTH, MOST = 0.5, 2.0  # of the probe's share: with less there is none, and more it does not get
LEAST = 0.3  # of the race's share, however late it is


@dataclass(frozen=True)
class Clock:
    """`began`: as `time.perf_counter` counts. `specs`: of the candidates."""

    config: DesignConfig
    store: Store
    began: float
    specs: Sequence[str]

    @property
    def left(self) -> float:
        """Seconds before the training must begin."""
        training = self.config.share("train") if self.config.train_for is None else 0.0
        return self.config.seconds - training - (time.perf_counter() - self.began)

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
        return self.store.get(record_key(KIND, self._asked("probe, after its timing"))) is not None

    def race(self) -> float:
        """Seconds of the race: its share, or less."""
        share = self.config.share("race")
        return self._decided("race", min(share, max(LEAST * share, self.left)))

    def _decided(self, stage: str, seconds: float) -> float:
        """What was decided first."""
        asked = self._asked(stage)
        known = self.store.get(record_key(KIND, asked))
        if known is None:
            known = Record.of(KIND, asked, {"seconds": round(seconds, 1)}, provenance_of(time.time(), 0.0))
            self.store.put(known)
        return float(known.result["seconds"])

    def _asked(self, stage: str) -> dict[str, object]:
        return {"protocol": PROTOCOL, "stage": stage, "config": self.config.as_dict(), "specs": list(self.specs)}
