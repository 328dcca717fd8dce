"""Peak and total bytes of tensors in a call, counted exactly, not sampled.

A dispatch hook sees every operation's outputs, and a finaliser the end of every storage. Temporary allocations inside
kernels are not seen; on CPUs they are within one per cent.

Also latency and memory as LiteTransformerSearch's own code (archai) counts them, for comparison only.

Latency there is measured in train mode, with gradients recorded, as a mean of wall times. "Peak memory" there is the
sum of all operations' outputs in one forward pass in train mode, whether or not they are alive at once, and without the
weights: several times the true peak of inference, and a poor guide to it.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from plait.core.errors import UserError
from plait.core.result import Result
from plait.device.quantities import Setting
from plait.device.workload import Workload, threads
from plait.model.architecture import Architecture


class LiveTensors(TorchDispatchMode):
    """While active, counts bytes of tensors: `peak` of those alive at once, `made` of all that were allocated."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.made = 0
        self._alive: set[int] = set()

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled here; torch's default would import the compiler, which takes four CPU seconds."""
        return False

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        inputs = {tensor.untyped_storage()._cdata for tensor in tensors}
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                # Views and results of in-place operations use storage that was counted before.
                if storage._cdata not in inputs and storage._cdata not in self._alive:
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


REPEATS = 10


@dataclass(frozen=True)
class ArchaiCount(Result):
    seconds: float
    memory: int  # bytes


def measure_archai(arch: Architecture, setting: Setting, *, repeats: int = REPEATS) -> ArchaiCount:
    if setting.mode != "prefill":
        raise UserError("archai measures only whole sequences; leave out mode=decode.")
    with threads(setting):
        work = Workload(arch, setting)
        work.model.train()
        work.model(work.tokens_BT)
        took = []
        for _ in range(repeats):
            start = time.perf_counter()
            work.model(work.tokens_BT)
            took.append(time.perf_counter() - start)
        with LiveTensors() as tensors:
            work.model(work.tokens_BT)
    return ArchaiCount(fmean(took), tensors.made)
