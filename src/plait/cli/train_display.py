"""One live line while a model trains: loss, speed, share of the machine's peak, time left."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from plait.cli.output import console
from plait.report.numbers import short

if TYPE_CHECKING:
    from plait.train.fit import Progress as Now
    from plait.train.job import Job


class Display:
    def __init__(self, job: Job, quiet: bool) -> None:
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TaskProgressColumn(),
            TextColumn("{task.fields[now]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console(stderr=True),
            disable=quiet,
        )
        self._task = self._bar.add_task(f"measuring {job.corpus.name}", total=None, now="")
        self._said = ""

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: Any) -> None:
        self._bar.stop()

    def update(self, now: Now) -> None:
        if now.note and now.note != self._said:
            self._bar.console.print(now.note, style="yellow")
            self._said = now.note
        held_out = "" if math.isnan(now.held_out) else f"  held out {now.held_out:.3f}"
        words = (
            f"loss {now.loss:.3f}{held_out}  {short(now.tokens_per_second)} tokens/s  "
            f"{100 * now.utilisation:.0f} % of peak"
        )
        self._bar.update(self._task, description=now.run.name, total=now.steps, completed=now.step, now=words)
