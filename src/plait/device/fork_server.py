"""The peak memory of models, each measured in a child of a process that has imported all there is to import.

Only anonymous memory counts: pages of libraries and of the interpreter are the same for every model, and how many of
them are resident is chance. The model runs once to settle what libraries keep for themselves, free memory is handed
back, the kernel's high-water mark is set back, and the second run is the one that counts.

The process reads one JSON request a line, `{"spec": …, "setting": …, "mixers": [source, …]}`, and answers each with one
line. The child's memory is its own, so that nothing one model leaves behind is counted for the next, and a child that
is killed takes nothing along. What users' files print goes to the error stream: the output is for answers.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from plait.core.errors import UserError
from plait.core.user_files import announce_nothing
from plait.device.latency import give_back
from plait.device.setting import Setting
from plait.device.workload import Workload
from plait.mixers import table
from plait.mixers.source import MixerSource
from plait.model.architecture import architecture
from plait.model.user_mixers import adopt

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # as `man 5 proc` has it


def measure_here(spec: str, setting: Setting) -> dict[str, int]:
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
    # The least models fit into pages that the process had before.
    peak = max(peak, work.weight_bytes + held)
    return {"peak": peak, "weights": work.weight_bytes, "state": held, "activations": peak - work.weight_bytes - held}


def anonymous() -> int:
    return _status("RssAnon") if STATUS.exists() else _most_ever()


def highest_anonymous() -> int:
    """The peak without the libraries' pages, of which a second run touches no new ones."""
    return _status("VmHWM") - _status("RssFile") - _status("RssShmem") if STATUS.exists() else _most_ever()


def reset_peak() -> None:
    # Where the system has no such switch, building the model counts towards the peak, too.
    with suppress(OSError):
        CLEAR.write_text(RESET_PEAK)


def _status(field: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def _most_ever() -> int:
    most: Any = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(most) * (1 if sys.platform == "darwin" else 1024)


#: Every mixer, and tokens enough for the paths that only long sequences take: some import more of torch when first
#: used, which no model should be charged with.
EVERYTHING = f"d=128 vocab=64 embed=adaptive cutoffs=32 div=2 | {' '.join(table.MIXERS.lines)}"
MANY_TOKENS = 520


def serve() -> None:
    announce_nothing()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asked; it closes our input
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    # A process that has started threads must not fork: the children start their own.
    torch.set_num_threads(1)
    with torch.inference_mode():
        Workload(architecture(EVERYTHING), Setting(mode="decode", seq=MANY_TOKENS)).run()
    try:
        print(json.dumps({"ready": True}), file=answers, flush=True)
        for line in sys.stdin:
            print(json.dumps(_answered(json.loads(line))), file=answers, flush=True)
    except BrokenPipeError:
        os._exit(0)  # whoever asked is gone, and so is the place for a complaint


def _answered(request: dict[str, Any]) -> dict[str, Any]:
    try:
        # Here, not in the child: what a user's file imports is there before a model's memory is counted.
        adopt(MixerSource.from_dict(source) for source in request["mixers"])
    except UserError as wrong:
        return {"error": str(wrong)}
    return _in_a_child(request)


def _in_a_child(request: dict[str, Any]) -> dict[str, Any]:
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        answer = _answer(request)
        with os.fdopen(writing, "w") as out:
            json.dump(answer, out)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as out:
        text = out.read()
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        by = signal.Signals(os.WTERMSIG(status)).name
        return {"error": f"the process that ran it was ended by {by}, as happens where memory is short"}
    return dict(json.loads(text))


def _answer(request: dict[str, Any]) -> dict[str, Any]:
    try:
        return dict(measure_here(request["spec"], Setting(**request["setting"])))
    except (UserError, RuntimeError, MemoryError) as wrong:
        return {"error": str(wrong) or type(wrong).__name__}
    except Exception as wrong:  # a user's mixer may raise anything
        return {"error": f"{type(wrong).__name__}: {wrong}"}
