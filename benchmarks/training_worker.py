"""Training steps of the probe's small models, one by one, on request. As a program it needs little of plait, so that
older sources can run it, too.

Every line is answered by the core-seconds that it took: the name of a mixer builds its model, an empty line takes a
step.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

import torch

from plait.model import build

SMALL_BATCH = 32


def training_step(mixer: str, batch: int) -> Callable[[], None]:
    body = f"({mixer})x4" if mixer.startswith("mamba[") else f"({mixer} swiglu[inner=352])x2"
    model = build(f"d=128 vocab=16 | {body}")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.98))
    tokens = torch.randint(16, (batch, 128), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        optimizer.zero_grad()
        model.loss(tokens, tokens).backward()
        optimizer.step()

    return step


def main() -> None:
    torch.set_num_threads(1)
    step: Callable[[], None] | None = None
    for line in sys.stdin:
        began = time.process_time()
        if line.strip():
            step = training_step(line.strip(), SMALL_BATCH)
        assert step is not None
        step()
        print(time.process_time() - began, flush=True)


if __name__ == "__main__":
    main()
