"""Two versions of plait's attention kernels in one run, taking turns: what a change gained or cost.

    python benchmarks/kernel_versions.py --against OTHER/src [--cases "narrow, 1024" …] [--rounds 3] [--out ROWS.jsonl]

Each source runs in a process of its own; both prepare a case, then are timed turn by turn while nothing else uses the
GPU (`gpu_turn`): forward and backward, all gradients, replayed as a graph; the median of twenty with a cold cache, and
of these the least of all rounds. Gates of forgetting attention: open (nothing can be left out), mixed (time constants
from 2 to 2,048 tokens) and closed (e^-13.8 per token). `--tiny` tries it in Triton's interpreter.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

#: Op, batch, tokens, heads, head width, gates.
CASES: dict[str, tuple[str, int, int, int, int, str]] = {
    "fox, 4096, D 64, open": ("fox", 8, 4096, 16, 64, "open"),
    "fox, 4096, D 64, mixed": ("fox", 8, 4096, 16, 64, "mixed"),
    "fox, 4096, D 64, closed": ("fox", 8, 4096, 16, 64, "closed"),
    "fox, 16384, D 64, open": ("fox", 2, 16384, 16, 64, "open"),
    "fox, 4096, D 128, open": ("fox", 8, 4096, 16, 128, "open"),
    "fox, 128, D 64, open": ("fox", 256, 128, 16, 64, "open"),
    "narrow, 128": ("narrow", 768, 128, 16, 8, ""),
    "narrow, 256": ("narrow", 384, 256, 16, 8, ""),
    "narrow, 1024": ("narrow", 128, 1024, 16, 8, ""),
    "narrow, 1024, D 16": ("narrow", 128, 1024, 8, 16, ""),
}


def prepared(name: str, tiny: bool) -> Callable[[], float]:
    """What times the case once, in milliseconds."""
    import torch
    import torch.nn.functional as F
    from gpu_turn import TURN

    from plait.ops.forgetting_attention import forgetting_attention
    from plait.ops.narrow_attention import narrow_attention

    _, batch, tokens, heads, width, gates = CASES[name]
    device, dtype = ("cpu", torch.float32) if tiny else ("cuda", torch.bfloat16)
    if tiny:
        batch, tokens, heads = 1, 70, 1
    stream, scale = torch.Generator(device).manual_seed(0), width**-0.5
    shape = (batch, tokens, heads, width)
    inputs = [torch.randn(shape, device=device, dtype=dtype, generator=stream).requires_grad_() for _ in range(3)]
    if gates:
        log_f = torch.full(shape[:3], {"open": -1e-4, "mixed": 0.0, "closed": -13.8}[gates], device=device)
        if gates == "mixed":
            time_H = torch.linspace(math.log(2), math.log(2048), heads, device=device).exp()
            bias_H = -torch.log(torch.expm1(1 / time_H))
            log_f = F.logsigmoid(bias_H + torch.randn(log_f.shape, device=device, generator=stream))
        inputs.append(log_f.requires_grad_())
    do = torch.randn(shape, device=device, dtype=dtype, generator=stream)

    def both() -> Any:
        o = forgetting_attention(*inputs, scale=scale) if gates else narrow_attention(*inputs, scale, True)
        return torch.autograd.grad(o, inputs, do)

    if tiny:
        begun = time.perf_counter()
        both()
        return lambda: 1e3 * (time.perf_counter() - begun)
    from tiles import captured

    from plait.device.kernel_bench import median_ms

    with TURN.shared():
        replay = captured(both)

    def timed() -> float:
        with TURN.alone():
            return median_ms(replay, torch.device("cuda"), 20)

    return timed


def serve(tiny: bool) -> None:
    """A case's name prepares it, an empty line times it; each is answered by one line."""
    timed: Callable[[], float] | None = None
    for line in sys.stdin:
        if line.strip():
            timed = prepared(line.strip(), tiny)
            print("ready", flush=True)
        else:
            assert timed is not None
            print(timed(), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", type=Path, help="the other version's folder src")
    parser.add_argument("--cases", nargs="*", default=list(CASES), choices=list(CASES), metavar="CASE")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.serve:
        serve(asked.tiny)
        return
    here = Path(__file__).parents[1] / "src"
    command = [sys.executable, __file__, "--serve", *(["--tiny"] if asked.tiny else [])]
    others = os.environ.get("PYTHONPATH", "")

    def started(source: Path) -> subprocess.Popen[str]:
        environment = {**os.environ, "PYTHONPATH": f"{source}:{others}"}
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment)

    workers = [started(asked.against), started(here)]

    def ask(worker: subprocess.Popen[str], line: str) -> None:
        assert worker.stdin is not None
        worker.stdin.write(f"{line}\n")
        worker.stdin.flush()

    def answer(worker: subprocess.Popen[str]) -> str:
        assert worker.stdout is not None
        return worker.stdout.readline().strip()

    for name in asked.cases:
        for worker in workers:
            ask(worker, name)
        if [answer(worker) for worker in workers] != ["ready"] * 2:
            print(name, "FAILED", flush=True)
            break
        rounds = []
        for _ in range(asked.rounds):
            for worker in workers:
                ask(worker, "")
                rounds.append(float(answer(worker)))
        before, after = min(rounds[::2]), min(rounds[1::2])
        row = {"case": name, "before_ms": before, "after_ms": after, "ratio": before / after, "rounds": rounds}
        print(f"{name}: {before:.3f} -> {after:.3f} ms, {before / after:.3f} times as fast; {rounds}", flush=True)
        if asked.out:
            with open(asked.out, "a") as file:
                file.write(json.dumps(row) + "\n")
    for worker in workers:
        worker.kill()


if __name__ == "__main__":
    main()
