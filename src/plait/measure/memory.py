"""True peak memory of a model: weights, state and activations, in a process of its own.

    with MemoryMeter() as meter:
        for spec in specs:
            meter.measure(architecture(spec), setting)

Importing torch takes seconds and a measurement less than one, so a meter keeps a process that has imported it and forks
a fresh child for every model (`plait.measure.zygote`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict, dataclass
from typing import Any

from plait.arch import Architecture
from plait.errors import UserError
from plait.measure.setting import Setting

#: Freed blocks of this size and above go back to the system at once, so that the peak is what the model needs. What a
#: process keeps beyond that, to be faster, is its own affair, and by default chance: see `plait.measure.allocator`.
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


@dataclass(frozen=True)
class Memory:
    """Bytes at the peak of one call, and its parts; `activations` is all that is neither weights nor the state kept."""

    peak: int
    weights: int
    state: int
    activations: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class MemoryMeter:
    def __init__(self) -> None:
        environment = {**os.environ, **ALLOCATOR, "OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "plait.measure.zygote"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        self._read()

    def __enter__(self) -> MemoryMeter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def measure(self, arch: Architecture, setting: Setting) -> Memory:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({"spec": arch.text, "setting": setting.as_dict()}) + "\n")
        self._process.stdin.flush()
        answer = self._read()
        if "error" in answer:
            raise UserError(f"the memory of '{arch.text}' was not measured: {answer['error']}")
        return Memory(**answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise UserError("the process that measures memory has ended; see what it printed above.")
        answer: dict[str, Any] = json.loads(line)
        return answer
