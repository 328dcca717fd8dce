"""The kernels' guard on this machine's GPU, op by op, until the time is up.

    python benchmarks/kernel_guard.py [--ops gla mamba2 …] [--heads narrow] [--decays strong] [--seconds 60]
        [--longest 16384]

`plait check MIXER --device cuda` shows the same for one mixer. Every setting that is off is printed, then a row per op,
dtype and path with its worst setting. `--device cpu --longest 64` tries it without a GPU.
"""

from __future__ import annotations

import argparse
import time

import torch
from gpu_turn import TURN, aside_while_compiling

from plait.device.kernel_bench import CASES
from plait.device.kernel_guard import Guarded, guard, settings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ops", nargs="*", default=list(CASES))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--longest", type=int, default=16384)
    parser.add_argument("--heads", choices=("narrow", "wide"), help="only narrow heads, or only those of a 125M model")
    parser.add_argument("--decays", nargs="*", help="only with these, or without any")
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    begun, device = time.perf_counter(), torch.device(asked.device)
    if device.type == "cuda":
        aside_while_compiling()
    for name in asked.ops:
        rows: dict[tuple[str, str], list[Guarded]] = {}
        wanted = settings(CASES[name], longest=asked.longest)
        if asked.heads:
            wanted = [each for each in wanted if bool(each.width) == (asked.heads == "narrow")]
        if asked.decays:
            wanted = [each for each in wanted if each.decays in ("", *asked.decays)]
        for setting in wanted:
            if time.perf_counter() - begun > asked.seconds:
                break
            with TURN.shared():
                found = guard(CASES[name], setting, device)
            rows.setdefault((found.dtype, found.path), []).append(found)
            if not found.right:
                print("  OFF", found, flush=True)
        for (dtype, path), group in rows.items():
            worst = max(group, key=lambda each: each.error)
            most = max(each.members for each in group)
            print(
                f"{name} {dtype} {path}: {len(group)} settings, lengths to {max(each.tokens for each in group)}, "
                f"{sum(x.width > 0 for x in group)} with narrow heads, up to {most} stacked members, "
                f"worst {worst.error:.1e} ({worst.worst}, {worst.setting}), "
                f"{'right' if all(x.right for x in group) else 'WRONG'} "
                f"[{time.perf_counter() - begun:.0f} s]",
                flush=True,
            )


if __name__ == "__main__":
    main()
