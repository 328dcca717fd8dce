"""The cost of a training step of a supernet relative to its largest model alone, in one run.

    python benchmarks/fusion.py [--d 256] [--vocab 1024] [--batch 8] [--length 128] [--repeats 15]

Each row fuses models of several depths; fused, largest and each model alone take turns, and a time is the median over
turns of one step (loss, gradients, AdamW). `fused / largest` is about 1 according to LiteTransformerSearch (App. B);
`separate / fused` is the speed-up over training every model separately. One thread.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

from plait import __version__
from plait.model import build
from plait.training.fusion import fuse

ROWS = {
    "attn 3, 5 layers": ["(attn[heads=4] mlp)x3", "(attn[heads=4] mlp)x5"],
    "attn 2, 4, 6, 8 layers": [f"(attn[heads=4] mlp)x{n}" for n in (2, 4, 6, 8)],
    "hybrid 4, 8 layers": ["(gla[heads=4] mlp attn[heads=4] mlp)x2", "(gla[heads=4] mlp attn[heads=4] mlp)x4"],
    "3, 5 layers, widths differ": [
        "(attn[heads=4] mlp)x2 attn[heads=4] mlp[inner=256]",
        "(attn[heads=4] mlp)x5",
    ],
}


def stepper(model: nn.Module, loss: Callable[[], Tensor]) -> Callable[[], float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def step() -> float:
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=True)
        loss().backward()
        optimizer.step()
        return time.perf_counter() - start

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"d": 256, "vocab": 1024, "batch": 8, "length": 128, "repeats": 15}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    drawn = torch.randint(asked.vocab, (asked.batch, asked.length + 1), generator=torch.Generator().manual_seed(0))
    x, y = drawn[:, :-1], drawn[:, 1:]
    print(f"torch {torch.__version__}, plait {__version__}, {vars(asked)}, milliseconds per step")
    print(f"{'models':32} {'fused':>8} {'largest':>8} {'separate':>9} {'fused/largest':>14} {'separate/fused':>15}")
    for name, bodies in ROWS.items():
        specs = [f"d={asked.d} vocab={asked.vocab} | {body}" for body in bodies]
        fused = fuse(specs)
        alone = [build(spec) for spec in specs]
        steps = [
            stepper(fused, lambda fused=fused: fused.loss(x, y).sum()),
            *(stepper(model, lambda model=model: model.loss(x, y)) for model in alone),
        ]
        times = [[step() for step in steps] for _ in range(asked.repeats + 2)][2:]
        ours, *theirs = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
        largest, together = max(theirs), sum(theirs)
        ratios = f"{ours / largest:14.2f} {together / ours:15.2f}"
        print(f"{name:32} {ours:8.1f} {largest:8.1f} {together:9.1f} {ratios}", flush=True)


if __name__ == "__main__":
    main()
