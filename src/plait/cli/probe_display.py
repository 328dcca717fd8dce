"""The live display of a probe: tasks across, architectures down, accuracy so far, what is training, time left."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from plait.cli.output import console, plain, table
from plait.cli.probe_report import _SHORT
from plait.core.units import duration

if TYPE_CHECKING:
    from plait.probing.candidates import Candidate
    from plait.probing.protocol import Protocol
    from plait.probing.run import Progress

REFRESH_SECONDS = 0.5


class Display:
    """A terminal gets one table that changes; a pipe or `--json` gets nothing until the end."""

    def __init__(self, candidates: Sequence[Candidate], protocol: Protocol, *, quiet: bool) -> None:
        from rich.live import Live

        self._names = [one.name for one in candidates]
        self._tasks = protocol.task_names
        out = console()
        self._live = None if quiet or not out.is_terminal else Live(console=out, transient=True, auto_refresh=False)
        self._shown = 0.0

    def update(self, progress: Progress) -> None:
        now = time.perf_counter()
        if self._live is not None and now - self._shown >= REFRESH_SECONDS:
            self._shown = now
            self._live.update(self._drawn(progress), refresh=True)

    def stop(self) -> None:
        if self._live is not None:
            self._live.stop()

    def _drawn(self, progress: Progress) -> Any:
        from rich.console import Group
        from rich.text import Text

        elapsed = time.perf_counter() - progress.started
        head = f"{progress.phase}  {duration(elapsed)}"
        if progress.work is None:
            return Text(head)
        cells = progress.work.cells
        share = progress.share(cells)
        left = elapsed * (1 - share) / share if share > 0.02 else progress.work.expected_seconds
        if left is not None:
            head += f", about {duration(left)} left"
        alive = sum(running["alive"] for running in progress.running.values())
        head += f"  {len(progress.done)} of {len({cell.key for cell in cells})} cells, {alive} members training"
        grouped = defaultdict(list)
        for cell in cells:
            grouped[cell.candidate, cell.task.name].append(cell)
        made = table(architecture="left", **{_SHORT.get(task, task): "right" for task in self._tasks})
        for name in self._names:
            made.add_row(
                plain(name),
                *(self._cell(progress, grouped[name, task]) for task in self._tasks),
            )
        return Group(Text(head), made)

    def _cell(self, progress: Progress, cells: list[Any]) -> str:
        """Mean test accuracy of what is done; in brackets the validation accuracy of what is training."""
        done = [progress.done[cell.key] for cell in cells if cell.key in progress.done]
        text = f"{sum(done) / len(done):.2f}" if done else ""
        for cell in cells:
            running = progress.running.get(cell.key)
            if running is not None:
                accuracy = "…" if running["accuracy"] is None else f"{running['accuracy']:.2f}"
                text += f" [dim]{accuracy} {100 * running['step'] // cell.training.steps} %[/]"
        return text or "[dim]·[/]"

    def __enter__(self) -> Display:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
