"""Synthetic tasks that each test one skill: input tokens, targets, and a solver. NumPy only."""

from plait.tasks.data import TaskData, chance, draw, macro_accuracy, make_data, mean_ceiling, metric, token_accuracy
from plait.tasks.task import IGNORE, SUITES, Examples, Task, baseline, load, load_task, names

__all__ = [
    "IGNORE",
    "SUITES",
    "Examples",
    "Task",
    "TaskData",
    "baseline",
    "chance",
    "draw",
    "load",
    "load_task",
    "macro_accuracy",
    "make_data",
    "mean_ceiling",
    "metric",
    "names",
    "token_accuracy",
]
