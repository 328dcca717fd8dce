"""What separates mixers on two cores within ten minutes: parity, S3, palindromes and recall of 8 pairs, with intervals.

    python benchmarks/tracking_small.py [--workers 2] [--seeds 3] --out FILE.jsonl

The sets are those of `tracking.py`, with as many steps as they need; every training is a process of one thread, the
longest first. Ends with the table of `tracking.py page` and with the seconds it took, by the clock and of the cores.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tracking_page import page

S3 = ("deltaproduct[head_dim=16,steps=2,conv=1]", "deltanet[head_dim=16,neg_eigval,conv=1]")
RECALL = ("mamba2[state=32,head_dim=64]", "deltanet[head_dim=64]", "attn[heads=2]")
PARITY = (
    "rwkv7[head_dim=16,decay_rank=8,rate_rank=8,gate_rank=8,neg_eigval]",
    "deltanet[head_dim=16,neg_eigval,conv=1]",
    "mamba2[state=16,head_dim=16]",
    "deltanet[head_dim=16,conv=1]",
    "attn[heads=2]",
)
TURN = ("mamba3[state=16,head_dim=8,rotate=1,turn=held]",)
#: (set, steps, mixers), the longest trainings first.
TRAININGS = (
    ("mqar-small", 300, RECALL),
    ("parity-turn", 1100, TURN),
    ("s3-narrow", 600, S3),
    ("palindrome", 300, RECALL),
    ("parity", 500, PARITY),
)


def commands(seeds: int, out: Path, where: str) -> Iterator[list[str]]:
    script = str(Path(__file__).with_name("tracking.py"))
    for name, steps, mixers in TRAININGS:
        for mixer in mixers:
            chosen = [name, "--only", mixer, "--steps", str(steps), "--seeds", str(seeds)]
            yield [sys.executable, script, *chosen, "--where", where, "--out", str(out)]


def main() -> None:
    asked = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    asked.add_argument("--workers", type=int, default=2)
    asked.add_argument("--seeds", type=int, default=3)
    asked.add_argument("--out", type=Path, required=True)
    given = asked.parse_args()
    began, one_thread = time.perf_counter(), {**os.environ, "OMP_NUM_THREADS": "1"}
    with ThreadPoolExecutor(given.workers) as pool:
        runs = commands(given.seeds, given.out, f"CPU, {given.workers} at once")
        for done in pool.map(lambda run: subprocess.run(run, env=one_thread, capture_output=True, text=True), runs):
            if done.returncode:
                sys.exit(done.stderr)
    took = time.perf_counter() - began
    rows = [json.loads(line) for line in given.out.read_text(encoding="utf-8").splitlines()]
    print(page(rows))
    spent = sum(row["cpu_seconds"] for row in rows)
    print(f"{took:.0f} seconds by the clock, {given.workers} trainings at once; {spent:.0f} seconds of one core")


if __name__ == "__main__":
    main()
