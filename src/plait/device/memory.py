"""Peak memory of a model (weights, state and activations), measured in a separate process.

    with MemoryMeter() as meter:
        for spec in specs:
            meter.measure(architecture(spec), setting)

Importing torch takes seconds and a measurement less than one. So `MemoryMeter` starts one fork server (`serve`) that
has imported everything and forks a fresh child per model: leftovers of one model do not count for the next, and a
killed child affects nothing else. If the server itself is killed, for example by a system short of memory, another one
is started.

The server reads one JSON `Request` per line and answers each with one line, a `Memory` or an error. Output of users'
mixer files goes to stderr, because stdout carries the answers.

On a CPU only anonymous memory counts: pages of libraries and of the interpreter are the same for every model, and how
many of them are resident is random. The model runs once so that libraries allocate what they keep, freed memory goes
back to the system, the kernel's high-water mark is reset, and the peak of the second run is the result.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict

import torch

from plait.core.errors import UserError
from plait.core.progress import SAFE, python_command
from plait.core.result import Result
from plait.core.user_files import MixerSource, announce_nothing, users_fault
from plait.device.latency import give_back
from plait.device.quantities import Setting
from plait.device.workload import Workload
from plait.mixers import table
from plait.mixers.table import MIXERS
from plait.model.architecture import Architecture, architecture
from plait.model.user_mixers import register_sources

#: Freed blocks of this many bytes and more go back to the system at once, so that the peak is what the model needs. By
#: default malloc keeps an unpredictable number of them for later (see `plait.device.latency`).
ALLOCATOR = {"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"}


@dataclass(frozen=True)
class Memory(Result):
    """Bytes at the peak of one call, and its parts; `activations` is everything except weights and state."""

    peak: int
    weights: int
    state: int
    activations: int


class Peak(TypedDict):
    """A `Memory` as JSON."""

    peak: int
    weights: int
    state: int
    activations: int


class Request(TypedDict):
    spec: str
    setting: dict[str, Any]  # `Setting.as_dict`
    mixers: list[dict[str, str]]  # source files of the users' mixers in the spec


class Failure(TypedDict):
    error: str


class MemoryMeter:
    def __init__(self) -> None:
        self._process = _start_server()

    def __enter__(self) -> MemoryMeter:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def measure(self, arch: Architecture, setting: Setting) -> Memory:
        request: Request = {"spec": arch.text, "setting": setting.as_dict(), "mixers": _user_mixers(arch)}
        answer = _ask(self._process, request)
        if answer is None:
            self.close()
            self._process = _start_server()
            answer = _ask(self._process, request) or {"error": "the measuring process was killed twice"}
        if "peak" in answer:
            return Memory(**answer)
        raise UserError(f"the memory of '{arch.text}' was not measured: {answer['error'].removesuffix('.')}.")

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):  # from a request that was never read
            self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


def _start_server() -> subprocess.Popen[str]:
    process = subprocess.Popen(
        python_command("plait.device.memory", "serve"),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **SAFE, **ALLOCATOR, "OMP_NUM_THREADS": "1"},
    )
    if _read_line(process) is None:
        raise UserError("the process that measures memory did not start; see its output above.")
    return process


def _ask(process: subprocess.Popen[str], request: Request) -> Peak | Failure | None:
    """The server's answer; None if the server has ended."""
    assert process.stdin is not None
    try:
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
    except BrokenPipeError:
        return None
    answer: Peak | Failure | None = _read_line(process)
    return answer


def _read_line(process: subprocess.Popen[str]) -> Any:
    """The JSON value of the next line; None if the process has ended."""
    assert process.stdout is not None
    line = process.stdout.readline()
    return json.loads(line) if line.endswith("\n") else None


def _user_mixers(arch: Architecture) -> list[dict[str, str]]:
    """Source files of the mixers that are not plait's own."""
    for mixer in (part for layer in arch.layers for part in layer.parts):
        if mixer.name not in MIXERS.lines and mixer.source is None:
            raise UserError(
                f"memory is measured in a separate process, which does not know '{mixer.name}': put the mixer into a "
                "file and load it with `plait.load_mixer`."
            )
    return [source.as_dict() for source in arch.mixer_sources.values()]


STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # see clear_refs in `man 5 proc`


def measure_here(spec: str, setting: Setting) -> Peak:
    """Bytes: `peak`, and its parts `weights`, `state` (after the run) and `activations` (all the rest)."""
    torch.set_num_threads(setting.threads)
    on_gpu = setting.device.startswith("cuda")
    give_back()
    before = 0 if on_gpu else anonymous()
    with torch.inference_mode():
        work = Workload(architecture(spec), setting)
        work.run()
        give_back()
        torch.cuda.reset_peak_memory_stats() if on_gpu else reset_peak()
        _, state = work.run()
    peak = torch.cuda.max_memory_allocated() if on_gpu else highest_anonymous() - before
    held = 0 if state is None else state.nbytes
    # A very small model fits into pages that the process already had, and would seem to need less than its weights.
    peak = max(peak, work.weight_bytes + held)
    return {"peak": peak, "weights": work.weight_bytes, "state": held, "activations": peak - work.weight_bytes - held}


def anonymous() -> int:
    return _status("RssAnon") if STATUS.exists() else _peak_of_process_lifetime()


def highest_anonymous() -> int:
    """The peak without the pages of libraries; a second run touches no new ones of those."""
    return (
        _status("VmHWM") - _status("RssFile") - _status("RssShmem") if STATUS.exists() else _peak_of_process_lifetime()
    )


def reset_peak() -> None:
    # On a system without this switch, building the model counts towards the peak as well.
    with suppress(OSError):
        CLEAR.write_text(RESET_PEAK)


def _status(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _peak_of_process_lifetime() -> int:
    most: Any = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most) * (1 if sys.platform == "darwin" else 1024)


#: A model with every mixer, run by the server before it forks, on enough tokens to use the code paths for long
#: sequences: some paths import more of torch on first use, and that memory should not count for any model.
EVERYTHING = f"d=128 vocab=64 embed=adaptive cutoffs=32 div=2 | {' '.join(table.MIXERS.lines)}"
MANY_TOKENS = 520


def serve() -> None:
    announce_nothing()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the meter's process, which then closes our input
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # A process that has started threads must not fork: the children start their own.
    torch.set_num_threads(1)
    with torch.inference_mode():
        Workload(architecture(EVERYTHING), Setting(mode="decode", seq=MANY_TOKENS)).run()
    try:
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(_handle(json.loads(line))), file=answers, flush=True)
    except BrokenPipeError:
        os._exit(0)  # the meter's process has ended, so nobody could read an error message


def _handle(request: Request) -> Peak | Failure:
    try:
        # Here and not in the child, so that modules imported by a user's file do not count for the model.
        register_sources(MixerSource.from_dict(source) for source in request["mixers"])
    except UserError as wrong:
        return {"error": str(wrong)}
    return _measure_in_child(request)


def _measure_in_child(request: Request) -> Peak | Failure:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        answer = _measure_or_explain(request)
        with os.fdopen(writing, "w") as out:
            json.dump(answer, out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as out:
        text = out.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        by = signal.Signals(os.WTERMSIG(status)).name
        return {"error": f"the process was killed by {by}, probably because memory ran out"}
    measured: Peak | Failure = json.loads(text)
    return measured


def _measure_or_explain(request: Request) -> Peak | Failure:
    try:
        return measure_here(request["spec"], Setting(**request["setting"]))
    except UserError as wrong:
        return {"error": str(wrong)}
    except (RuntimeError, MemoryError) as wrong:
        return {"error": users_fault(wrong) or str(wrong) or type(wrong).__name__}
    except Exception as wrong:  # a user's mixer may raise anything
        return {"error": users_fault(wrong) or f"{type(wrong).__name__}: {wrong}"}
