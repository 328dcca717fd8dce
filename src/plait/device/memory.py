"""True peak memory of a model: weights, state and activations, in a process of its own.

    with MemoryMeter() as meter:
        for spec in specs:
            meter.measure(architecture(spec), setting)

Importing torch takes seconds and a measurement less than one, so a meter keeps a process that has imported it and forks
a fresh child for every model (`plait.device.fork_server`). That process is told the texts of users' own mixers. When
it is ended from outside (by a system that is short of memory, for one), nothing is lost: another is started.
"""

from __future__ import annotations

import json
import os
import subprocess
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import Any

from plait.core.child_process import SAFE, python_command
from plait.core.errors import UserError
from plait.device.setting import Setting
from plait.mixers.table import MIXERS
from plait.model.architecture import Architecture

#: Freed blocks of this size and above go back to the system at once, so that the peak is what the model needs. What a
#: process keeps beyond that, to be faster, is its own affair, and by default chance: see `plait.device.latency`.
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
        self._process = _started()

    def __enter__(self) -> MemoryMeter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def measure(self, arch: Architecture, setting: Setting) -> Memory:
        request = {"spec": arch.text, "setting": setting.as_dict(), "mixers": _sources(arch)}
        answer = _asked(self._process, request)
        if answer is None:
            self.close()
            self._process = _started()
            answer = _asked(self._process, request) or {"error": "the process that measures it was ended, twice"}
        if "error" in answer:
            raise UserError(f"the memory of '{arch.text}' was not measured: {answer['error'].removesuffix('.')}.")
        return Memory(**answer)

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # of a request that nobody read
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _started() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        python_command("plait.device.fork_server", "serve"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **SAFE, **ALLOCATOR, "OMP_NUM_THREADS": "1"},
    )
    if _read(process) is None:
        raise UserError("the process that measures memory does not start; see what it printed above.")
    return process


def _asked(process: subprocess.Popen[str], request: dict[str, Any]) -> dict[str, Any] | None:
    """The answer; None where the process has ended."""
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    return _read(process)


def _read(process: subprocess.Popen[str]) -> dict[str, Any] | None:
    assert process.stdout is not None
    line = process.stdout.readline()
    return dict(json.loads(line)) if line.endswith("\n") else None


def _sources(arch: Architecture) -> list[dict[str, str]]:
    """Of the mixers that are not plait's own."""
    for options in arch.layers:
        if options.name not in MIXERS.lines and options.source is None:
            raise UserError(
                f"memory is measured in a process of its own, which cannot know '{options.name}': put the mixer into a "
                "file and load it with `plait.load_mixer`."
            )
    return [source.as_dict() for source in arch.mixer_sources.values()]
