"""Whose turn on the GPU it is, among processes that know nothing of each other: many may use it together, one may
have it alone.

`PLAIT_TURN` names a file; without it everybody is alone. Whoever computes on the GPU holds `TURN.shared()`, whoever
times a model holds `TURN.alone()`, and whoever compiles on the CPU holds neither. One who waits to be alone keeps
others from coming in, so it need not wait long. Those that choose between kernels by their time share the GPU with
all but timed models, and hold `choosing()`, so that they do not disturb each other. The operating system gives
up the turns of a process that ends.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any


class Turn:
    def __init__(self, kind: str = "") -> None:
        path = os.environ.get("PLAIT_TURN", "") and os.environ["PLAIT_TURN"] + kind
        self._file, self._gate = (open(name, "w") for name in (path, f"{path}.gate")) if path else (None, None)  # noqa: SIM115
        self._sharing = self._aside = 0

    def _take(self, how: int) -> None:
        if self._file is not None and self._gate is not None:
            fcntl.flock(self._gate, fcntl.LOCK_EX)
            fcntl.flock(self._file, how)
            fcntl.flock(self._gate, fcntl.LOCK_UN)

    def _leave(self) -> None:
        if self._file is not None:
            fcntl.flock(self._file, fcntl.LOCK_UN)

    @contextmanager
    def shared(self) -> Iterator[None]:
        if not self._sharing:
            self._take(fcntl.LOCK_SH)
        self._sharing += 1
        try:
            yield
        finally:
            self._sharing -= 1
            if not self._sharing:
                self._leave()

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Inside `shared`: what needs no GPU for a while."""
        if self._sharing and not self._aside:
            self._leave()
        self._aside += 1
        try:
            yield
        finally:
            self._aside -= 1
            if self._sharing and not self._aside:
                self._take(fcntl.LOCK_SH)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Inside `shared` it gives that up meanwhile."""
        if self._sharing:
            self._leave()
        self._take(fcntl.LOCK_EX)
        try:
            yield
        finally:
            self._leave()
            if self._sharing:
                self._take(fcntl.LOCK_SH)


TURN, _CHOOSING = Turn(), Turn(".choosing")


@contextmanager
def choosing() -> Iterator[None]:
    """Inside `TURN.shared()`: alone among those that choose between kernels. They queue without a turn, so that one who
    times a model need not wait for all of them."""
    with ExitStack() as held:
        with TURN.aside():
            held.enter_context(_CHOOSING.alone())
        yield


def aside_while_compiling() -> None:
    """Triton compiles at a kernel's first launch: from now on without a turn."""
    from triton.runtime.jit import JITFunction

    compiled = JITFunction._do_compile

    def run(*args: Any, **options: Any) -> Any:
        with TURN.aside():
            return compiled(*args, **options)

    JITFunction._do_compile = run
