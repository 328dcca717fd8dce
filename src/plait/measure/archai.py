"""As LiteTransformerSearch's own code (archai) counts, for comparison only.

Latency is taken in train mode, gradients recorded, as a mean of wall times. "Peak memory" there is the sum of all
operations' outputs in one forward pass in train mode, whether or not they are alive at once, and without the weights:
several times the true peak of inference, and a poor guide to it.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any

from plait.arch import Architecture
from plait.core.errors import UserError
from plait.measure.live import LiveTensors
from plait.measure.setting import Setting
from plait.measure.workload import Workload, threads

REPEATS = 10


@dataclass(frozen=True)
class ArchaiCount:
    seconds: float
    memory: int  # bytes

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def measure_archai(arch: Architecture, setting: Setting, *, repeats: int = REPEATS) -> ArchaiCount:
    if setting.mode != "prefill":
        raise UserError("archai measures whole sequences only; leave mode=decode out.")
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
