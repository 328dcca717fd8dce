"""Which way an op goes: its hand-written fast path, or its plain form.

The plain form runs where it must: inside a compiled graph (the compiler fuses it, and does not see hand-written
gradients under `torch.func.grad`), and inside `plain_ops()`, which gives second derivatives and a path to compare with.
Inside `recorded_ops()` a graph is being recorded for the compiler: ops take their plain form, too, unless they have a
kernel that is an operator of its own, which the graph holds as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_plain: ContextVar[bool] = ContextVar("plait_plain_ops", default=False)
_recorded: ContextVar[bool] = ContextVar("plait_recorded_ops", default=False)


@contextmanager
def plain_ops() -> Iterator[None]:
    """Every op in its plain form: slower, and differentiable as often as wanted."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


@contextmanager
def recorded_ops() -> Iterator[None]:
    """Every op in the form that a recorded graph should hold."""
    token = _recorded.set(True)
    try:
        yield
    finally:
        _recorded.reset(token)


def plain_asked() -> bool:
    """Whether this runs inside `plain_ops()`; never asked of a graph, which must not depend on it."""
    return not torch.compiler.is_compiling() and _plain.get()


def in_graph() -> bool:
    """Whether what runs becomes part of a graph."""
    return torch.compiler.is_compiling() or _recorded.get()


def plain_wanted(*, operator: bool = False) -> bool:
    """Whether an op with a hand-written gradient should take its plain form. `operator`: its kernel is one here."""
    if torch.compiler.is_compiling() or _plain.get():
        return True
    return _recorded.get() and not operator
