"""The bar of a study that trains many models, and what is said when it is interrupted."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import typer

from plait.cli.output import console


@contextmanager
def progress(models: int, quiet: bool) -> Iterator[Callable[[float, int, str], None]]:
    """Yields what a study calls with the models behind it, how many there are, and what it is doing."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

    from plait.training.fit import Interrupted

    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:.1f} of {task.total} models"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console(stderr=True),
        disable=quiet,
    )
    task = bar.add_task("beginning", total=models)
    try:
        with bar:
            yield lambda done, _, what: bar.update(task, completed=done, description=f"{what:14}")
    except Interrupted as stopped:
        console(stderr=True).print(f"interrupted; {stopped.run.name} is saved. The same command goes on.")
        raise typer.Exit(130) from None
    except KeyboardInterrupt:
        console(stderr=True).print("interrupted; what is done is stored. The same command goes on.")
        raise typer.Exit(130) from None
