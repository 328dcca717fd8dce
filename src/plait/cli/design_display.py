"""The stages of a design as they run: one bar each in a terminal, one line each in a log."""

from __future__ import annotations

from rich.progress import BarColumn, Progress, TaskID, TaskProgressColumn, TextColumn, TimeElapsedColumn

from plait.cli.output import console, plain

WORDS = {
    "text": "text to train on",
    "profile": "profile this machine",
    "search": "search the space",
    "measure": "measure the best few",
    "probe": "probe what they can do",
    "train": "train the pick",
}
WIDE = 56  # characters of what is going on


class Display:
    def __init__(self, *, quiet: bool) -> None:
        self._out = console(stderr=True)
        self._quiet = quiet
        self._bar = Progress(
            TextColumn("{task.description:<24}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}", style="dim"),
            console=self._out,
            disable=quiet or not self._out.is_terminal,
        )
        self._tasks: dict[str, TaskID] = {}
        self._done: set[str] = set()

    def update(self, stage: str, share: float | None, now: str) -> None:
        """`share` of a stage is done, None where nobody knows."""
        if stage not in self._tasks:
            self._tasks[stage] = self._bar.add_task(WORDS[stage], total=None, now="")
        words = plain(" ".join(now.split()))
        shown = words if len(words) <= WIDE else f"{words[: WIDE - 1]}…"
        self._bar.update(self._tasks[stage], total=None if share is None else 1.0, completed=share or 0.0, now=shown)
        if share == 1.0 and stage not in self._done:
            self._done.add(stage)
            self._bar.stop_task(self._tasks[stage])
            if not self._quiet and not self._out.is_terminal:
                self._out.print(f"{WORDS[stage]}: {words}", style="dim")

    def stop(self) -> None:
        self._bar.stop()

    def __enter__(self) -> Display:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
