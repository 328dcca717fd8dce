"""What a training tells of itself as it goes: its curves, the rows of `log.jsonl`, and the sinks that were asked for.

The curves are in the checkpoints and in the record; the file and the sinks can be lost without loss.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from plait.core.errors import UserError
from plait.training.run import Run
from plait.training.sinks import Logged, Sinks, open_sinks
from plait.training.trainer import Taken

Point = list[float]  # [step, loss]


@dataclass
class TrainingLog:
    run: Run
    say: Callable[[str], object]  # told what could not be written
    curve: list[Point] = field(default_factory=list)  # mean training loss since the last
    validation: list[Point] = field(default_factory=list)
    pending: list[float] = field(default_factory=list)  # losses since the last logged step
    sinks: Sinks | None = None  # None also in every process but the first
    written: bool = False  # the first process writes

    def open(self, names: tuple[str, ...], config: dict[str, Any]) -> None:
        """In the first process."""
        folder = self.run.folder
        self.written = True
        self.sinks = open_sinks(names, Logged(self.run.name, folder, folder.parent, config), self.say)

    @property
    def newest_loss(self) -> float:
        newest = [*(loss for _, loss in self.curve[-1:]), *self.pending[-1:]]
        return newest[-1] if newest else math.nan

    def take(self, loss: float) -> None:
        if math.isfinite(loss):
            self.pending.append(loss)

    def step(self, taken: Taken, tokens_per_second: float) -> None:
        """A row, with the mean of the losses since the one before."""
        mean = sum(self.pending) / len(self.pending) if self.pending else None
        self.pending = []
        if mean is not None:
            self.curve.append([taken.step, mean])
        norm = taken.norm if math.isfinite(taken.norm) else None
        speed = round(tokens_per_second)
        self._write({"step": taken.step, "loss": mean, "lr": taken.lr, "norm": norm, "tokens_per_second": speed})
        if self.sinks is not None:
            rates = {"lr": taken.lr, "gradient_norm": norm, "tokens_per_second": speed}
            self.sinks.log(taken.step, {"loss/train": mean, **rates})

    def evaluation(self, step: int, loss: float) -> None:
        """A point of the validation curve. JSON has no numbers that are not finite."""
        finite = math.isfinite(loss)
        if finite:
            self.validation.append([step, loss])
        self._write({"step": step, "validation": loss if finite else None})
        if self.sinks is not None:
            self.sinks.log(step, {"loss/validation": loss})

    def _write(self, row: dict[str, Any]) -> None:
        if not self.written:
            return
        try:
            self.run.log(row)
        except UserError as wrong:  # as on a full disk
            self.say(str(wrong))

    def close(self, result: dict[str, Any] | None = None) -> None:
        """With what came out, or without where it was interrupted."""
        if self.sinks is not None:
            self.sinks.close(result)

    # ---- in checkpoints

    def plain(self) -> dict[str, Any]:
        return {"curve": self.curve, "validation": self.validation, "pending": self.pending}

    def restore(self, kept: dict[str, Any]) -> None:
        self.curve, self.validation, self.pending = kept["curve"], kept["validation"], kept["pending"]
