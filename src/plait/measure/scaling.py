"""How long single blocks (norm, mixer, residual) take as the sequence grows, and with which power of its length.

PAR Transformer (Mandava et al. 2020, arXiv:2009.04534), Figure 1 and §2.3: attention O(N²), feed-forward O(N) a block.
Every block is measured by itself, so its weights are in the cache where they fit there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from plait.analysis.intervals import NORMAL
from plait.arch import Architecture, MixerOptions
from plait.core.errors import UserError
from plait.measure.allocator import keep_freed_memory
from plait.measure.exponents import Exponent, Growth, fit_exponent, flop_growth
from plait.measure.setting import Setting
from plait.measure.stopwatch import Stopwatch, Timing
from plait.measure.workload import Layers, threads

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
        """Each over the lengths."""
        each = ([timing.seconds for timing in self.timings], [timing.low for timing in self.timings])
        return (*each, [timing.high for timing in self.timings])

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
    """`128,256,512` as numbers in order; `UserError` for what is no list of at least two different lengths."""
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
    found = (BlockKind(arch.header.d, arch.header.norm, options) for arch in archs for options in arch.layers)
    return list(dict.fromkeys(found))


def measure_scaling(
    blocks: Sequence[BlockKind], lengths: Sequence[int], setting: Setting, *, seconds: float = 0.4,
    heard: Callable[[BlockKind, int], object] = lambda block, length: None,
) -> list[BlockScaling]:  # fmt: skip
    """Each block at each length, `seconds` each, under the setting (whose own `seq` is not used); `heard` is called
    after each. In decode a length is that of what was read before."""
    if setting.device.startswith("cuda") and not torch.cuda.is_available():
        raise UserError(f"device '{setting.device}' given, but torch finds no GPU here.")
    if setting.mode == "decode" and (ahead := [block for block in blocks if block.options.bidirectional]):
        raise UserError(f"{ahead[0].text} sees later tokens and does not decode; measure it with mode=prefill.")
    keep_freed_memory()
    timings: dict[BlockKind, list[Timing]] = {block: [] for block in blocks}
    with threads(setting):
        watch = Stopwatch(setting)
        for length in lengths:
            for block in blocks:
                timings[block].append(_timed(block, replace(setting, seq=length), watch, seconds))
                heard(block, length)
    return [_scaling(block, tuple(lengths), timings[block], setting.mode) for block in blocks]


def _timed(block: BlockKind, setting: Setting, watch: Stopwatch, seconds: float) -> Timing:
    try:
        work = Layers(block.d, block.options, block.norm, setting, copies=1)
        return watch.time(work.run, seconds=seconds, least=REPEATS, limit=LIMIT)
    except RuntimeError as wrong:
        # The processor's allocator has no exception of its own.
        if isinstance(wrong, torch.OutOfMemoryError) or "allocate memory" in str(wrong):
            raise UserError(
                f"{block.text} of {setting.seq:,} tokens, batch {setting.batch}, does not fit into memory; "
                "leave out the longest of --lengths."
            ) from None
        raise


def _scaling(block: BlockKind, lengths: tuple[int, ...], timings: Sequence[Timing], mode: str) -> BlockScaling:
    errors = [(timing.high - timing.low) / (2 * NORMAL * timing.seconds) for timing in timings]
    exponent = fit_exponent(lengths, [timing.seconds for timing in timings], errors)
    return BlockScaling(
        block, lengths, tuple(timings), exponent, flop_growth(block.d, block.options, lengths, mode=mode)
    )
