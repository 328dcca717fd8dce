"""Training speed and peak memory of linear-time mixers on a GPU, each model in a process of its own.

    python benchmarks/linear_training.py [--models gla …] [--size 125m] [--seconds 300] [--how warm eager build …]

8 × 4096 random tokens per step, vocabulary 50257, the real trainer (`plait.training.throughput`). To be done, in this
order: `warm`, every model takes some steps at batch 1, all at once, which compiles its kernels into one cache;
`eager`, they are timed one by one, each row printed as soon as it is there; `build`, compiled models take some steps,
`--abreast` at a time; `compiled`, they are timed; `peer`, flash-linear-attention's are. A model that fails or takes too
long leaves the others alone. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time

MODELS = ("mamba2", "gla", "hgrn2", "retnet", "rwkv6", "mamba", "hyena", "gated-deltanet", "deltanet", "kda")


def spec_of(model: str, size: str) -> str:
    from plait.interop.train_bench import MODELS as named
    from plait.interop.train_bench import SIZES
    from plait.interop.train_bench import spec_of as known

    if "|" in model:
        return model
    return known(model, size) if model in named else SIZES[size].format(model)


def one(model: str, size: str, how: str, steps: int) -> dict[str, object]:
    """In a process of its own: one model, one way."""
    spec = spec_of(model, size)
    if how == "peer":
        from plait.interop.fla_models import peer_throughput

        found = peer_throughput(spec, steps=steps)
        return {"speed": found["tokens_per_second"], "gib": found["peak_bytes"] / 2**30, "loss": found["loss"]}
    from plait.training.throughput import throughput

    got = throughput(
        spec, device="cuda", compiled=how in ("build", "compiled"), batch=1 if how == "warm" else 8,
        steps=1 if how in ("warm", "build") else steps,
    )  # fmt: skip
    return {
        "speed": got.tokens_per_second, "gib": (got.peak_bytes or 0) / 2**30, "mfu": got.mfu,
        "first": got.first_step_seconds, "loss": got.loss,
    }  # fmt: skip


def start(model: str, size: str, how: str, steps: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", __file__, "--one", model, "--size", size, "--how", how]
    return subprocess.Popen(
        [*command, "--steps", str(steps)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def outcome(process: subprocess.Popen[str], limit: float) -> dict[str, object]:
    try:
        said, _ = process.communicate(timeout=max(1.0, limit))
    except subprocess.TimeoutExpired:
        process.kill()
        said, _ = process.communicate()
        return {"failure": f"no result in {limit:.0f} s", "said": said[-300:]}
    rows = [line for line in said.splitlines() if line.startswith("{")]
    return json.loads(rows[-1]) if process.returncode == 0 and rows else {"failure": said[-700:].strip()}


def text(row: dict[str, object]) -> str:
    if "failure" in row:
        return f"FAILED {row['failure']}"
    share = f" MFU {100 * float(str(row['mfu'])):.1f} %" if row.get("mfu") is not None else ""
    first = f" first step {row['first']:.1f} s" if "first" in row else ""
    return f"{float(str(row['speed'])) / 1e3:.1f}k tokens/s {row['gib']:.1f} GiB{share} loss {row['loss']:.3f}{first}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="*", default=list(MODELS))
    parser.add_argument("--size", default="125m")
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--how", nargs="*", default=["warm", "eager", "build", "compiled"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--limit", type=float, default=30, help="seconds for one row")
    parser.add_argument("--slowest", type=float, default=70, help="seconds for warming or building")
    parser.add_argument("--abreast", type=int, default=3)
    parser.add_argument("--one")
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(one(asked.one, asked.size, " ".join(asked.how), asked.steps)))
        return
    begun = time.perf_counter()

    def left() -> float:
        return asked.seconds - (time.perf_counter() - begun)

    def say(*words: object) -> None:
        print(f"[{time.perf_counter() - begun:5.1f}]", *words, flush=True)

    os.environ.setdefault("OMP_NUM_THREADS", "2")
    for how in asked.how:
        if how in ("warm", "build"):
            waiting, abreast = list(asked.models), len(asked.models) if how == "warm" else asked.abreast
            while waiting and left() > 5:
                batch, waiting = waiting[:abreast], waiting[abreast:]
                for model, process in [(m, start(m, asked.size, how, 1)) for m in batch]:
                    say(how, model, text(outcome(process, min(asked.slowest, left()))))
            continue
        for model in asked.models:
            if left() < 8:
                say("no time for", model, how)
                continue
            say(
                model,
                asked.size,
                how,
                text(outcome(start(model, asked.size, how, asked.steps), min(asked.limit, left()))),
            )


if __name__ == "__main__":
    main()
