"""More processes for one plan: the same command, started again beside this one; claims in the store share the work.

On a CPU each process has its share of the cores, on GPUs each its own device. What stops this process stops the others,
which save where they are.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from plait.core.child_process import python_command
from plait.core.errors import UserError
from plait.records import Store


@contextmanager
def helpers(
    count: int,
    plan: Path,
    store: Store,
    runs: Path,
    *,
    device: str = "cpu",
    mixers: Sequence[str] = (),
    log: Sequence[str] = (),
) -> Iterator[None]:
    """So many more processes at work on the plan; left when all have ended."""
    if not count:
        yield
        return
    threads = max(1, (os.cpu_count() or 1) // (count + 1))
    _own_share(threads, device)
    command = [*python_command("plait.cli.main", "main"), "scale", "run", str(plan), "--json"]
    command += ["--runs", str(runs), "--device", device]
    command += ["--log", ",".join(log)] if log else []
    command += [part for file in mixers for part in ("--mixers", file)]
    environments = [_environment(store, threads, device, 1 + place) for place in range(count)]
    quiet, piped = subprocess.DEVNULL, subprocess.PIPE
    started = [subprocess.Popen(command, env=each, stdout=quiet, stderr=piped) for each in environments]
    try:
        yield
    except BaseException:
        for one in started:
            one.send_signal(signal.SIGINT)
        for one in started:
            one.communicate()
        raise
    for one in started:
        _, said = one.communicate()
        if one.returncode:
            raise UserError(f"a worker has ended with {one.returncode}: {said.decode(errors='replace').strip()[-300:]}")


def _environment(store: Store, threads: int, device: str, place: int) -> dict[str, str]:
    """The store goes by the environment: its URL may hold a password."""
    environment = {**os.environ, "PLAIT_STORE": store.url}
    if device == "cpu":
        return {**environment, "OMP_NUM_THREADS": str(threads)}
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    devices = visible.split(",") if visible else [str(number) for number in range(_gpus())]
    return {**environment, "CUDA_VISIBLE_DEVICES": devices[place % len(devices)]}


def _own_share(threads: int, device: str) -> None:
    import torch

    if device == "cpu":
        torch.set_num_threads(threads)


def _gpus() -> int:
    import torch

    return max(1, torch.cuda.device_count())
