"""The time of single blocks (norm, mixer, residual) as a function of sequence length, and its exponent.

The exponent k of y ~ N^k is the slope of a line in log-log space. It is fitted over the upper half of the lengths,
because fixed costs hide the growth below. For a sum of powers it is between them: attention's projections are linear in
N and its scores quadratic, so that a whole block has 1 < k < 2 and tends to 2 as N grows. The part that mixes along the
sequence is therefore also counted separately.

PAR Transformer (Mandava et al. 2020, arXiv:2009.04534), Figure 1 and §2.3: attention O(N²), feed-forward O(N) per
block. Every block is measured by itself, so its weights are in the cache if they fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from plait.analysis.distributions import t_quantile
from plait.analysis.intervals import NORMAL
from plait.core.errors import UserError
from plait.core.result import Result
from plait.device.latency import Stopwatch, Timing, keep_freed_memory
from plait.device.quantities import Setting
from plait.device.workload import Layers, threads
from plait.mixers.options import MIXING, MixerOptions
from plait.model.architecture import Architecture


@dataclass(frozen=True)
class Exponent(Result):
    """`low` to `high` is a 95 % interval by Student's t from the residuals of the fit: the timings' own errors do not
    include what changes between lengths. With three points, as for five lengths, it is wide. Two points have no
    residuals: only their own errors are known."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Growth(Result):
    """Exponents of a block's exact FLOPs. None: there are none of that kind (identity has no FLOPs, an MLP mixes no
    tokens)."""

    whole: float | None
    mixing: float | None


def upper_half(lengths: Sequence[int]) -> slice:
    """The lengths that are fitted, given sorted ones; the middle one is included."""
    return slice(-(len(lengths) // 2 + 1), None)


def fit_exponent(lengths: Sequence[int], values: Sequence[float], errors: Sequence[float] | None = None) -> Exponent:
    """Least squares over the upper half of the lengths; `errors` are relative standard errors, needed if only two
    lengths are fitted."""
    fitted = upper_half(lengths)
    x, y = np.log(np.asarray(lengths[fitted], dtype=float)), np.log(np.asarray(values[fitted], dtype=float))
    weights = (x - x.mean()) / ((x - x.mean()) ** 2).sum()
    slope = float(weights @ y)
    left = y - y.mean() - slope * (x - x.mean())
    if len(x) > 2:
        scatter = float(left @ left) / (len(x) - 2)
        reach = t_quantile(len(x) - 2) * float(np.sqrt(scatter * float(weights @ weights)))
    else:
        measured = np.zeros(len(x)) if errors is None else np.asarray(errors[fitted], dtype=float)
        reach = NORMAL * float(np.sqrt(weights**2 @ measured**2))
    return Exponent(slope, slope - reach, slope + reach)


def flop_growth(d: int, options: MixerOptions, lengths: Sequence[int], *, mode: str = "prefill") -> Growth:
    """Growth of the exact costs: of N tokens at once, or of one token after N others."""
    costs = [options.cost(d, *((length, 0) if mode == "prefill" else (1, length))) for length in lengths]
    return Growth(
        _exponent(lengths, [float(cost.total_flops) for cost in costs]),
        _exponent(lengths, [float(cost.flops.get(MIXING, 0)) for cost in costs]),
    )


def _exponent(lengths: Sequence[int], flops: Sequence[float]) -> float | None:
    return fit_exponent(lengths, flops).value if min(flops) > 0 else None


#: Times that differ by less may be the other way round in the next measurement: two of one model differ by up to 5 %
#: (benchmarks/results/2026-11-19-cpu-device-intervals.md).
APART = 0.05


def crossover(lengths: Sequence[int], ours: Sequence[float], theirs: Sequence[float]) -> float | None:
    """The length from which on ours takes less time than theirs, after taking more before; None if the two do not cross
    for good within these lengths, or are too close on one side to tell. Between two lengths both are interpolated by a
    power law."""
    gap = np.log(np.asarray(ours, dtype=float)) - np.log(np.asarray(theirs, dtype=float))
    behind = np.flatnonzero(gap >= 0)
    if not len(behind) or behind[-1] == len(gap) - 1:
        return None
    last = int(behind[-1])
    if gap[: last + 1].max() < np.log1p(APART) or gap[last + 1 :].min() > -np.log1p(APART):
        return None
    x = np.log(np.asarray(lengths[last : last + 2], dtype=float))
    return float(np.exp(x[0] + (x[1] - x[0]) * gap[last] / (gap[last] - gap[last + 1])))


LONGEST = 1 << 22
REPEATS, LIMIT = 4, 4  # at least so many repeats, at most so many rounds: long sequences take long


@dataclass(frozen=True)
class BlockKind:
    """What makes two blocks of models equal."""

    d: int
    norm: str
    options: MixerOptions

    @property
    def text(self) -> str:
        return str(self.options.to_layer())


@dataclass(frozen=True)
class BlockScaling:
    """One block over all lengths."""

    block: BlockKind
    lengths: tuple[int, ...]
    timings: tuple[Timing, ...]
    exponent: Exponent
    flops: Growth

    def seconds_low_high(self) -> tuple[list[float], list[float], list[float]]:
        """Times and their interval bounds, one entry per length."""
        return (
            [timing.seconds for timing in self.timings],
            [timing.low for timing in self.timings],
            [timing.high for timing in self.timings],
        )

    def as_dict(self) -> dict[str, Any]:
        return {
            "block": self.block.text,
            "d": self.block.d,
            "norm": self.block.norm,
            "kind": self.block.options.kind,
            "latency": [
                {"length": n, **timing.as_dict()} for n, timing in zip(self.lengths, self.timings, strict=True)
            ],
            "exponent": self.exponent.as_dict(),
            "flops_exponent": self.flops.as_dict(),
        }


def read_lengths(text: str) -> tuple[int, ...]:
    """`128,256,512` as sorted numbers; `UserError` unless there are at least two different lengths."""
    words = [word.strip() for word in text.split(",")]
    digits = [word for word in words if word.isascii() and word.isdigit() and len(word) <= len(str(LONGEST))]
    good = [int(word) for word in digits if 1 <= int(word) <= LONGEST]
    if len(good) < len(words) or len(set(good)) < max(2, len(good)):
        raise UserError(
            f"--lengths '{text}' given; write at least two different whole numbers from 1 to {LONGEST:,}, "
            "with commas between: 128,256,512,1024."
        )
    return tuple(sorted(good))


def distinct_blocks(archs: Iterable[Architecture]) -> list[BlockKind]:
    """Every kind of block in the order in which it first occurs."""
    kinds = (BlockKind(arch.header.d, arch.header.norm, options) for arch in archs for options in arch.layers)
    return list(dict.fromkeys(kinds))


def measure_scaling(
    blocks: Sequence[BlockKind], lengths: Sequence[int], setting: Setting, *, seconds: float = 0.4,
    on_progress: Callable[[BlockKind, int], object] = lambda block, length: None,
) -> list[BlockScaling]:  # fmt: skip
    """Each block at each length, `seconds` each, under the setting (whose own `seq` is not used); `on_progress` is
    called after each. In decode mode a length is that of the preceding context."""
    if setting.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device '{setting.device}' given, but torch finds no GPU here.")
    if setting.mode == "decode" and (ahead := [block for block in blocks if block.options.bidirectional]):
        raise UserError(f"{ahead[0].text} sees later tokens and cannot decode; measure it with mode=prefill.")
    keep_freed_memory()
    timings: dict[BlockKind, list[Timing]] = {block: [] for block in blocks}
    with threads(setting):
        watch = Stopwatch(setting)
        for length in lengths:
            for block in blocks:
                timings[block].append(_timed(block, replace(setting, seq=length), watch, seconds))
                on_progress(block, length)
    return [_scaling(block, tuple(lengths), timings[block], setting.mode) for block in blocks]


def _timed(block: BlockKind, setting: Setting, watch: Stopwatch, seconds: float) -> Timing:
    try:
        work = Layers(block.d, block.options, block.norm, setting, copies=1)
        return watch.time(work.run, seconds=seconds, least=REPEATS, limit=LIMIT)
    except RuntimeError as wrong:
        # On a CPU, torch raises a plain RuntimeError when memory runs out.
        if isinstance(wrong, torch.OutOfMemoryError) or "allocate memory" in str(wrong):
            raise UserError(
                f"{block.text} of {setting.seq:,} tokens, batch {setting.batch}, does not fit into memory; "
                "leave out the largest of --lengths."
            ) from None
        raise


def _scaling(block: BlockKind, lengths: tuple[int, ...], timings: Sequence[Timing], mode: str) -> BlockScaling:
    errors = [(timing.high - timing.low) / (2 * NORMAL * timing.seconds) for timing in timings]
    exponent = fit_exponent(lengths, [timing.seconds for timing in timings], errors)
    return BlockScaling(
        block, lengths, tuple(timings), exponent, flop_growth(block.d, block.options, lengths, mode=mode)
    )
