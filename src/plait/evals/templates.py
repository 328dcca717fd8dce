"""Templates of the harness's task files, rendered so that an expression reaches the item's fields and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lm_eval.utils
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST = 10**7  # characters, items, or digits that an expression may make


class Sandbox(ImmutableSandboxedEnvironment):
    """Jinja's own, which hides what begins with an underscore, and no product or power that fills the memory."""

    intercepted_binops = frozenset(("*", "**"))

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "*":
            for many, times in ((left, right), (right, left)):
                if isinstance(times, int) and hasattr(many, "__len__") and len(many) * times > MOST:
                    raise SecurityError(f"a product of {len(many)} and {times} is too large for a template.")
        elif isinstance(left, int) and isinstance(right, int) and left.bit_length() * right > MOST:
            raise SecurityError("a power is too large for a template.")
        return super().call_binop(context, operator, left, right)

    def unsafe_undefined(self, obj: Any, attribute: str) -> Any:
        # Said at once: the harness would print what is undefined as an empty text.
        raise SecurityError(f"a template may not use {attribute!r} of a {type(obj).__name__}; say --trust to let it.")


@contextmanager
def templates(*, sandboxed: bool) -> Iterator[None]:
    """The harness has one environment for all its templates."""
    before = lm_eval.utils.env
    if sandboxed:
        sandbox = Sandbox(
            loader=before.loader, undefined=before.undefined, keep_trailing_newline=before.keep_trailing_newline
        )
        sandbox.filters.update(before.filters)
        lm_eval.utils.env = sandbox
    try:
        yield
    finally:
        lm_eval.utils.env = before
