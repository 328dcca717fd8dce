"""Recurrences and convolutions keep their precision under autocast.

Autocast would run the matrix products of a chunked form in half precision, and their errors would travel through the
state for the rest of the sequence. MAD (arXiv:2403.17844, App. C.3) keeps full precision there; so do these ops.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce, wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

Params = ParamSpec("Params")
Result = TypeVar("Result")


def full_precision(op: Callable[Params, Result]) -> Callable[Params, Result]:
    """Under autocast: run `op` outside of it, on inputs of the widest dtype among them. Otherwise leave it alone."""

    @wraps(op)
    def run(*args: Params.args, **kwargs: Params.kwargs) -> Result:
        first = args[0]
        assert isinstance(first, Tensor)
        device = first.device.type
        if device == "meta" or not torch.is_autocast_enabled(device):
            return op(*args, **kwargs)
        given = [x for x in (*args, *kwargs.values()) if _floating(x)]
        widest = reduce(torch.promote_types, (x.dtype for x in given))  # type: ignore[attr-defined]

        def cast(x: Any) -> Any:
            return x.to(widest) if _floating(x) else x

        with torch.autocast(device, enabled=False):
            return op(*map(cast, args), **{key: cast(x) for key, x in kwargs.items()})

    return run


def _floating(x: object) -> bool:
    return isinstance(x, Tensor) and x.is_floating_point()
