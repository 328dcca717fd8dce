"""Which way an op goes: its hand-written fast path, or its plain form.

The plain form runs where it must: inside a compiled graph (the compiler fuses it, and does not see hand-written
gradients under `torch.func.grad`), and inside `plain_ops()`, which gives second derivatives and a path to compare with.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

_plain: ContextVar[bool] = ContextVar("plait_plain_ops", default=False)


@contextmanager
def plain_ops() -> Iterator[None]:
    """Every op in its plain form: slower, and differentiable as often as wanted."""
    token = _plain.set(True)
    try:
        yield
    finally:
        _plain.reset(token)


def plain_asked() -> bool:
    """Whether this runs inside `plain_ops()`; never asked of a graph, which must not depend on it."""
    return not torch.compiler.is_compiling() and _plain.get()


def plain_wanted() -> bool:
    """Whether an op with a hand-written gradient should take its plain form."""
    return torch.compiler.is_compiling() or _plain.get()
