"""A process that has imported all there is to import; it forks a child for every model to be measured.

Reads one JSON request a line, `{"spec": …, "setting": …, "mixers": [source, …]}`, and answers each with one line. The
child's memory is its own, so that nothing one model leaves behind is counted for the next, and a child that is killed
takes nothing along. What users' files print goes to the error stream: the output is for answers.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import torch

from plait.arch import MixerSource, architecture, table
from plait.core.errors import UserError
from plait.measure.peak import measure_here
from plait.measure.setting import Setting
from plait.measure.workload import Workload
from plait.usermixers import adopt

#: Every mixer, and tokens enough for the paths that only long sequences take: some import more of torch when first
#: used, which no model should be charged with.
EVERYTHING = f"d=128 vocab=64 embed=adaptive cutoffs=32 div=2 | {' '.join(table.MIXERS.lines)}"
MANY_TOKENS = 520


def serve() -> None:
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


if __name__ == "__main__":
    serve()
