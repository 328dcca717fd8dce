"""What a training logs: its learning curves, the rows of `log.jsonl`, and the sinks that were asked for.

The curves are in the checkpoints and in the record; nothing is lost with the file or the sinks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypedDict

from plait.core.errors import UserError
from plait.training.run import Run
from plait.training.sinks import Logged, Sinks, open_sinks
from plait.training.trainer import StepResult

Curve = list[list[float]]  # of [step, loss]


class LogState(TypedDict):
    """The log in a checkpoint."""

    curve: Curve
    validation: Curve
    pending: list[float]


@dataclass
class TrainingLog:
    """Call `open` in the first process only; the other processes keep the curves and write nothing."""

    run: Run
    warn: Callable[[str], object]  # called with a message when something could not be written
    curve: Curve = field(default_factory=list)  # mean training loss since the last point
    validation: Curve = field(default_factory=list)
    pending: list[float] = field(default_factory=list)  # losses since the last logged step
    sinks: Sinks | None = None
    opened: bool = False

    def open(self, names: tuple[str, ...], config: dict[str, Any]) -> None:
        self.opened = True
        if names:
            folder = self.run.folder
            self.sinks = open_sinks(names, Logged(self.run.name, folder, folder.parent, config), self.warn)

    @property
    def newest_loss(self) -> float:
        newest = [*(loss for _, loss in self.curve[-1:]), *self.pending[-1:]]
        return newest[-1] if newest else math.nan

    def add_loss(self, loss: float) -> None:
        if math.isfinite(loss):
            self.pending.append(loss)

    def write_step(self, done: StepResult, tokens_per_second: float) -> None:
        """A row, with the mean of the losses since the one before."""
        mean = sum(self.pending) / len(self.pending) if self.pending else None
        self.pending = []
        if mean is not None:
            self.curve.append([done.step, mean])
        norm = done.norm if math.isfinite(done.norm) else None
        speed = round(tokens_per_second)
        self._write({"step": done.step, "loss": mean, "lr": done.lr, "norm": norm, "tokens_per_second": speed})
        if self.sinks is not None:
            rates = {"lr": done.lr, "gradient_norm": norm, "tokens_per_second": speed}
            self.sinks.log(done.step, {"loss/train": mean, **rates})

    def write_validation(self, step: int, loss: float) -> None:
        """A point of the validation curve; JSON has no numbers that are not finite."""
        finite = math.isfinite(loss)
        if finite:
            self.validation.append([step, loss])
        self._write({"step": step, "validation": loss if finite else None})
        if self.sinks is not None:
            self.sinks.log(step, {"loss/validation": loss})

    def _write(self, row: dict[str, float | None]) -> None:
        if not self.opened:
            return
        try:
            self.run.log(row)
        except UserError as wrong:  # such as a full disk
            self.warn(str(wrong))

    def close(self, result: dict[str, Any] | None = None) -> None:
        """With the result, or without where the training was interrupted."""
        if self.sinks is not None:
            self.sinks.close(result)

    def state(self) -> LogState:
        return {"curve": self.curve, "validation": self.validation, "pending": self.pending}

    def restore(self, state: LogState) -> None:
        self.curve, self.validation, self.pending = state["curve"], state["validation"], state["pending"]
