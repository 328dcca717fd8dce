"""How fast the mixers are on one CPU thread: training steps a second, growth with length, and the cost of a step.

    python benchmarks/mixers.py [--out benchmarks/results/FILE.json] [--only gla mamba]
    python benchmarks/mixers.py --against SRC            other source of plait, such as an older commit's src folder

1. Training: the probe's model (two blocks of mixer and SwiGLU, four Mamba layers; width 128), batch 128 × 128
   tokens, forward, backward and AdamW. Beside it the steps per core-second of mad-lab's own code (batch 128 × 127
   tokens, SwiGLU 352 as in that code) on one core of a machine of the same class: the ratio is ours over theirs.
2. Length: forward and backward of one layer from 256 to 8192 tokens; the exponent of a power law fitted to the times.
3. Streaming: the time of `step` after 100 and after 100,000 tokens, in turns.

No mixer is timed that does not first agree with its own step-by-step form.

`--against`: training steps of this source and of another in turns, each in a process of its own, in seconds of one
core, which other work on the machine hardly changes. The best of eight; their ratio is that of the speeds.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import training_worker
from rich.console import Console
from rich.progress import track
from rich.table import Table

from plait import __version__
from plait.mixers.mixer import make_mixer
from plait.model.contract import Subject, forward_equals_steps
from plait.model.language_model import seed_mixer
from plait.model.user_mixers import load_mixer

# Optimizer steps per core-second of mad-lab (facts measured with its public code, fp32).
MAD_LAB = {
    "attn[heads=16]": 0.83,
    "hyena": 0.21,
    "hyena-experts[width=16]": 0.88,
    "mh-hyena[heads=16]": 0.097,
    "linear[heads=8]": 0.65,
    "gla[heads=8]": 0.31,
    "mamba[state=4,conv_bias=false]": 0.02,
}
OTHERS = ["fox[heads=16]", "mamba2[state=16,head_dim=32]", "hgrn2[head_dim=16]", "deltanet[head_dim=16]",
          "gated-deltanet[head_dim=16]", "rwkv6[head_dim=16]"]  # fmt: skip
LINEAR_TIME = [*(m for m in MAD_LAB if not m.startswith("attn")), *OTHERS[1:], "attn[heads=8,window=128]"]
FIXED_STATE = [m for m in LINEAR_TIME if not m.startswith("attn")]
LENGTHS = (256, 512, 1024, 2048, 4096, 8192)


def training(mixer: str) -> dict[str, float]:
    """Optimizer steps a second, the median of several."""
    step, times = training_worker.training_step(mixer, 128), []
    for _ in range(6):
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    seconds = median(times[1:])
    return {"seconds": seconds, "steps_per_second": 1 / seconds}


TURNS = 8


def against(source: Path, mixers: list[str]) -> dict[str, dict[str, float]]:
    """Core-seconds of a training step here and in the other source, and how many times as fast it is here."""
    sources = Path(__file__).parents[1] / "src", source
    here, there = (
        subprocess.Popen([sys.executable, training_worker.__file__], text=True, stdin=subprocess.PIPE,
                         stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(path)})
        for path in sources
    )  # fmt: skip

    def ask(worker: subprocess.Popen[str], line: str = "") -> float:
        assert worker.stdin is not None
        assert worker.stdout is not None
        worker.stdin.write(f"{line}\n")
        worker.stdin.flush()
        return float(worker.stdout.readline())

    found = {}
    with here, there:
        for mixer in mixers:
            for worker in (here, there):
                ask(worker, mixer)
            times: dict[subprocess.Popen[str], list[float]] = {here: [], there: []}
            for turn in range(TURNS):
                for worker in (here, there) if turn % 2 else (there, here):
                    times[worker].append(ask(worker))
            now, then = min(times[here]), min(times[there])
            found[mixer] = {"seconds": now, "against_seconds": then, "ratio": then / now}
            print(f"{mixer:34} {now:.3f} s, against {then:.3f}: {then / now:.2f} times as fast", flush=True)
    return found


def growth(mixer: str) -> dict[str, object]:
    """Times at every length and the exponent of the power law through them."""
    layer = _layer(mixer)
    times = []
    for tokens in LENGTHS:
        x = torch.randn(1, tokens, 128, generator=torch.Generator().manual_seed(0))
        spent = []
        for _ in range(5):
            start = time.perf_counter()
            layer(x).sum().backward()
            spent.append(time.perf_counter() - start)
        times.append(min(spent))
    logs = [(math.log(n), math.log(t)) for n, t in zip(LENGTHS, times, strict=True)]
    mean_x, mean_y = (sum(values) / len(logs) for values in zip(*logs, strict=True))
    exponent = sum((x - mean_x) * (y - mean_y) for x, y in logs) / sum((x - mean_x) ** 2 for x, _ in logs)
    return {"milliseconds": [1e3 * t for t in times], "exponent": exponent}


@torch.no_grad()
def streaming(mixer: str) -> dict[str, float]:
    """Milliseconds per step, early and late in a sequence, measured in turns."""
    layer = _layer(mixer)
    stream = torch.Generator().manual_seed(0)
    states = []
    for tokens in (100, 100_000):
        state = layer.init_state(1)
        for chunk in torch.randn(1, tokens, 128, generator=stream).split(4096, dim=1):
            _, state = layer.extend(chunk, state)
        states.append(state)
    x_BD, spent = torch.randn(1, 128, generator=stream), ([], [])
    for _ in range(300):
        for state, times in zip(states, spent, strict=True):
            start = time.perf_counter()
            layer.step(x_BD, state)
            times.append(time.perf_counter() - start)
    early, late = (1e3 * median(times) for times in spent)
    return {"at_100_ms": early, "at_100000_ms": late, "ratio": late / early}


def _layer(mixer: str) -> torch.nn.Module:
    layer = make_mixer(load_mixer(mixer), 128)
    seed_mixer(layer, seed=0)
    return layer


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write the figures to this JSON file")
    parser.add_argument("--only", nargs="*", help="only mixers with these names")
    parser.add_argument("--parts", nargs="*", default=["training", "growth", "streaming"])
    parser.add_argument("--against", type=Path, metavar="SRC", help="compare training with another source of plait")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    unknown = set(asked.only or ()) - {m.partition("[")[0] for m in [*MAD_LAB, *OTHERS]}
    if unknown:
        parser.error(f"--only {' '.join(sorted(unknown))}: the names are those before the options, such as gla")

    def chosen(mixers: list[str]) -> list[str]:
        return [m for m in mixers if not asked.only or m.partition("[")[0] in asked.only]

    if asked.against:
        found = against(asked.against, chosen([*MAD_LAB, *OTHERS]))
        if asked.out:
            asked.out.write_text(json.dumps({"about": _about(), "against": found}, indent=1) + "\n")
        return
    out = Console()
    results: dict[str, dict[str, object]] = {part: {} for part in asked.parts}
    for mixer in track(chosen([*MAD_LAB, *OTHERS]), "verifying", console=out, transient=True):
        holds, detail = forward_equals_steps(Subject(load_mixer(mixer), 128))
        if not holds:
            raise SystemExit(f"{mixer} is not timed: its steps do not give its forward pass ({detail})")
    measure = {"training": (training, [*MAD_LAB, *OTHERS]), "growth": (growth, LINEAR_TIME),
               "streaming": (streaming, FIXED_STATE)}  # fmt: skip
    for part in asked.parts:
        run, mixers = measure[part]
        for mixer in track(chosen(mixers), part, console=out, transient=True):
            results[part][mixer] = run(mixer)

    if "training" in results:
        table = Table("mixer", "steps/s", "mad-lab", "ratio", title="training, one thread, batch 128 × 128")
        for mixer, row in results["training"].items():
            theirs = MAD_LAB.get(mixer)
            if theirs:
                row["mad_lab_steps_per_second"], row["ratio"] = theirs, row["steps_per_second"] / theirs
            cells = (f"{theirs}", f"{row['ratio']:.1f}×") if theirs else ("", "")
            table.add_row(mixer.replace("[", r"\["), f"{row['steps_per_second']:.2f}", *cells)
        out.print(table)
    if "growth" in results:
        table = Table("mixer", *map(str, LENGTHS), "exponent", title="forward + backward, ms by tokens")
        for mixer, row in results["growth"].items():
            table.add_row(
                mixer.replace("[", r"\["), *(f"{ms:.1f}" for ms in row["milliseconds"]), f"{row['exponent']:.2f}"
            )
        out.print(table)
    if "streaming" in results:
        table = Table("mixer", "at 100", "at 100,000", "ratio", title="one step, ms")
        for mixer, row in results["streaming"].items():
            table.add_row(
                mixer.replace("[", r"\["),
                f"{row['at_100_ms']:.3f}",
                f"{row['at_100000_ms']:.3f}",
                f"{row['ratio']:.2f}",
            )
        out.print(table)
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.write_text(json.dumps({"about": _about(), **results}, indent=1) + "\n")


def _about() -> dict[str, object]:
    return {"date": time.strftime("%Y-%m-%d"), "plait": __version__, "torch": torch.__version__,
            "python": platform.python_version(), "processor": _processor(), "threads": 1}  # fmt: skip


def _processor() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


if __name__ == "__main__":
    main()
