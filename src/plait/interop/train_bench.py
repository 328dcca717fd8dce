"""Training speed of models of one size, eager and compiled, compared with flash-linear-attention's models of that kind.

All are measured in one run, so that ratios are meaningful: every model with the real trainer (`plait.training.speed`)
and the same tokens per step. A compiled model whose loss differs from the eager one is reported as wrong.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from plait.core.errors import UserError
from plait.core.registry import require_one_of
from plait.interop.fla_models import PeerTraining
from plait.model import model_cost
from plait.model.architecture import architecture
from plait.ops.paths import precision_on
from plait.training.speed import WarmTraining, peak_of

SIZES = {"125m": "d=768 | ({} swiglu[inner=2048])x12", "360m": "d=1024 | ({} swiglu[inner=2816])x24"}
#: A preset's name without its size, or a mixer in blocks of the same width and depth as the presets'.
MODELS = {
    "transformer": "transformer-llama",
    "fox-pro": "fox-pro",
    "gla": "gla",
    "hgrn2": "hgrn2",
    "deltanet": "deltanet",
    "gated-deltanet": "gated-deltanet",
    "mamba2": "mamba2",
}
_MIXERS = ("gla", "gated-deltanet")  # no preset has them alone
SAME_LOSS = 0.02  # relative difference of losses that half precision may cause in a few steps


@dataclass(frozen=True)
class TrainTiming:
    """`ratio`: speed of plait's compiled model (eager, if none was compiled) relative to this one. With a
    `failure` there are no figures."""

    model: str
    spec: str
    trainer: str
    tokens_per_second: float | None = None
    peak_gib: float | None = None  # of device memory
    mfu: float | None = None
    compile_seconds: float | None = None  # the first step's time over that of an eager one
    loss: float | None = None
    ratio: float | None = None
    failure: str = ""


def spec_of(model: str, size: str) -> str:
    """A model of the table at a size; anything else is a spec, checked here before the first is timed."""
    require_one_of(size, SIZES, f"size {size}")
    if model not in MODELS:
        architecture(model)
        return model
    return SIZES[size].format(model) if model in _MIXERS else f"{MODELS[model]}-{size}"


def train_timings(
    model: str, spec: str, *, batch: int, seq_len: int, vocab: int, steps: int, device: str, compiled: bool, peers: bool
) -> list[TrainTiming]:
    """The rows of one model: plait eager, plait compiled if asked for, and on a GPU the peer."""
    sizes: dict[str, Any] = {"batch": batch, "seq_len": seq_len, "vocab": vocab, "steps": steps}
    rows: list[TrainTiming] = []
    first = 0.0
    for how in (False, True) if compiled else (False,):

        def ours(how: bool = how) -> TrainTiming:
            nonlocal first
            timing = WarmTraining(spec, **sizes, device=device, compiled=how).time()
            gib = None if timing.peak_bytes is None else timing.peak_bytes / 2**30
            compiling = max(0.0, timing.first_step_seconds - first) if how else None
            first = timing.first_step_seconds
            return TrainTiming(
                model,
                spec,
                "plait compiled" if how else "plait eager",
                timing.tokens_per_second,
                gib,
                timing.mfu,
                compiling,
                timing.loss,
            )

        rows.append(_tried(ours, TrainTiming(model, spec, "plait compiled" if how else "plait eager")))
    if peers and device.startswith("cuda"):

        def theirs() -> TrainTiming:
            torch.cuda.reset_peak_memory_stats()
            timing = PeerTraining(spec, batch=batch, seq_len=seq_len, vocab=vocab).time(steps)
            peak = peak_of(torch.device(device), precision_on(device))
            arch = architecture(spec).with_vocabulary(vocab)
            flops = 3 * model_cost(arch, seq=seq_len).unmasked_flops / seq_len
            mfu = None if peak is None else timing["tokens_per_second"] * flops / peak
            gib = timing["peak_bytes"] / 2**30
            return TrainTiming(model, spec, PEER, timing["tokens_per_second"], gib, mfu, None, timing["loss"])

        rows.append(_tried(theirs, TrainTiming(model, spec, PEER)))
    return list(_with_ratios(_checked(rows)))


PEER = "flash-linear-attention"


def _tried(run: Callable[[], TrainTiming], empty: TrainTiming) -> TrainTiming:
    """Run one benchmark, free its memory afterwards, and turn its failure into a row, so that the others still run."""
    try:
        return run()
    except UserError as wrong:
        return replace(empty, failure=str(wrong))
    except torch.OutOfMemoryError:
        return replace(empty, failure="out of memory")
    except Exception as wrong:  # failures of a peer library are only reported
        if empty.trainer != PEER:
            raise
        return replace(empty, failure=f"{type(wrong).__name__}: {wrong}"[:200])
    finally:
        torch._dynamo.reset()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _checked(rows: list[TrainTiming]) -> list[TrainTiming]:
    losses = {row.trainer: row.loss for row in rows}
    eager, compiled = losses.get("plait eager"), losses.get("plait compiled")
    if eager is None or compiled is None or abs(compiled - eager) <= SAME_LOSS * abs(eager):
        return rows
    wrong = f"its loss is {compiled:.3f}, the eager model's {eager:.3f}"
    return [
        TrainTiming(row.model, row.spec, row.trainer, loss=row.loss, failure=wrong)
        if row.trainer == "plait compiled"
        else row
        for row in rows
    ]


def _with_ratios(rows: list[TrainTiming]) -> Iterator[TrainTiming]:
    speeds = [row.tokens_per_second for row in rows if row.trainer != PEER and row.tokens_per_second is not None]
    for row in rows:
        known = speeds and row.tokens_per_second is not None
        yield replace(row, ratio=speeds[-1] / row.tokens_per_second) if known and row.tokens_per_second else row
