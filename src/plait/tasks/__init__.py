"""Synthetic tasks that each probe one skill: tokens to read, and what is scored. NumPy only."""

from plait.tasks.data import TaskData, macro_accuracy, make_data, mean_ceiling, metric, token_accuracy
from plait.tasks.task import IGNORE, Examples, Task, baseline, load, load_task, names

__all__ = [
    "IGNORE",
    "Examples",
    "Task",
    "TaskData",
    "baseline",
    "load",
    "load_task",
    "macro_accuracy",
    "make_data",
    "mean_ceiling",
    "metric",
    "names",
    "token_accuracy",
]
