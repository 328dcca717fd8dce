"""The peak memory of one model, seen from inside a process that does nothing else.

Only anonymous memory counts: pages of libraries and of the interpreter are the same for every model, and how many of
them are resident is chance. The model runs once to settle what libraries keep for themselves, free memory is handed
back, the kernel's high-water mark is set back, and the second run is the one that counts.
"""

from __future__ import annotations

import resource
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from plait.arch import architecture
from plait.measure.allocator import give_back
from plait.measure.setting import Setting
from plait.measure.workload import Workload

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
