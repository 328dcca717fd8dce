"""How many bytes of tensors a call holds at most, and how many it makes in all: counted, not sampled.

Every operation's outputs are seen as torch dispatches it, and every storage's end as Python frees it. What a kernel
allocates for itself while it runs is not seen; on CPUs that is within one per cent.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveTensors(TorchDispatchMode):
    """While active: `peak` of what is alive at once, `made` for the sum of all that was ever allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.made = 0
        self._alive: set[int] = set()

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        given = {tensor.untyped_storage()._cdata for tensor in tensors}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                # A view's storage, or one changed in place, was there before.
                if storage._cdata not in given and storage._cdata not in self._alive:
                    self._add(storage)
        return out

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size = storage._cdata, storage.nbytes()
        self._alive.add(key)
        self.live += size
        self.made += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._end, key, size)

    def _end(self, key: int, size: int) -> None:
        self._alive.discard(key)
        self.live -= size
