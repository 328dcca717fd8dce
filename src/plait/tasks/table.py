"""The table of tasks: name → where it is defined. Adding a task adds one line here; a user's own is one file."""

from __future__ import annotations

from plait.core.errors import UserError
from plait.core.registry import Table
from plait.core.user_files import class_from_file, split_path
from plait.tasks.task import Task

TASKS: Table[type[Task]] = Table(
    "task",
    {
        "in-context-recall": "plait.tasks.recall:InContextRecall",
        "fuzzy-in-context-recall": "plait.tasks.fuzzy:FuzzyInContextRecall",
        "noisy-in-context-recall": "plait.tasks.recall:NoisyInContextRecall",
        "selective-copying": "plait.tasks.copying:SelectiveCopying",
        "compression": "plait.tasks.compression:Compression",
        "memorization": "plait.tasks.memorization:Memorization",
    },
    group="plait.tasks",
    hint=", or a .py file",
)
names, load = TASKS.names, TASKS.load


def baseline(name: str) -> Task:
    """A task at its baseline setting."""
    return TASKS.load(name)()


def load_task(given: str) -> Task:
    """The baseline of a task of the table, or of a user's: `my_task.py`, `my_task.py:Class`."""
    file = split_path(given)
    if file is None:
        return baseline(given)
    path, attribute = file
    found = class_from_file(path, Task, attribute)  # type: ignore[type-abstract]
    missing = ", ".join(sorted(found.__abstractmethods__))
    if missing:
        raise UserError(f"{path}: {found.__name__} does not define {missing}.")
    if not isinstance(getattr(found, "name", None), str):
        raise UserError(f"{path}: {found.__name__} has no `name`; add it as a class attribute.")
    if found.name in TASKS:
        raise UserError(f"{path}: the name '{found.name}' is taken by a built-in task; choose another.")
    try:
        return found()
    except UserError:
        raise
    except Exception as wrong:
        raise UserError(f"{path}: {found.__name__}() fails: {type(wrong).__name__}: {wrong}") from wrong
