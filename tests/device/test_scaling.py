"""Blocks over sequence length: which, which lengths, and that what is timed is the block at that length."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from plait.core.errors import UserError
from plait.device import lengths as scaling
from plait.device.latency import Timing
from plait.device.lengths import distinct_blocks, measure_scaling, read_lengths
from plait.device.quantities import Setting
from plait.device.workload import Layers
from plait.model.architecture import architecture


class Arithmetic:
    """A stopwatch for which a block takes a nanosecond for every token squared, and more for every other."""

    def __init__(self, setting: Setting) -> None: ...

    def time(self, call: Any, **how: float) -> Timing:
        y, _ = call()
        seconds = 1e-9 * y.shape[0] * y.shape[1] ** 2
        return Timing(seconds, 0.99 * seconds, 1.01 * seconds, 0.0, 4, 1.0, 0.0, 0.0, False)


def test_lengths_are_read_in_order() -> None:
    assert read_lengths("512, 128,256") == (128, 256, 512)


@pytest.mark.parametrize(
    "text", ["", "128", "128,", "128,128", "0,5", "-1,5", "1.5,3", "a,b", "9,99999999", "8,²", "9" * 5000 + ",1"]
)
def test_bad_lengths_are_one_clear_message(text: str) -> None:
    with pytest.raises(UserError, match="at least two different whole numbers"):
        read_lengths(text)


def test_blocks_are_told_apart_by_all_that_matters() -> None:
    specs = ("d=32 | (attn mlp)x3 mlp[inner=8]", "d=32 | mlp attn", "d=64 | mlp", "d=32 norm=layer | mlp")
    found = distinct_blocks([architecture(spec) for spec in specs])
    assert [(block.d, block.norm, block.text) for block in found] == [
        (32, "rms", "attn"),
        (32, "rms", "mlp"),
        (32, "rms", "mlp[inner=8]"),
        (64, "rms", "mlp"),
        (32, "layer", "mlp"),
    ]


def test_every_block_is_timed_at_every_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scaling, "Stopwatch", Arithmetic)
    blocks = distinct_blocks([architecture("d=16 vocab=9 | attn[heads=2] mlp")])
    heard: list[tuple[str, int]] = []
    found = measure_scaling(
        blocks, (8, 16, 32), Setting(batch=3), on_progress=lambda block, length: heard.append((block.text, length))
    )
    assert heard == [(text, length) for length in (8, 16, 32) for text in ("attn[heads=2]", "mlp")]
    for one in found:
        assert one.seconds_low_high()[0] == pytest.approx([3e-9 * n**2 for n in (8, 16, 32)])
        assert one.exponent.value == pytest.approx(2)
        assert one.exponent.high - one.exponent.low == pytest.approx(0.02 / 0.6931 * 2**0.5, rel=0.02)  # two lengths
    assert found[1].flops.whole == pytest.approx(1)
    document = json.loads(json.dumps([one.as_dict() for one in found]))
    assert [(row["block"], row["kind"]) for row in document] == [("attn[heads=2]", "sequence"), ("mlp", "channel")]
    assert [point["length"] for point in document[0]["latency"]] == [8, 16, 32]


def test_for_real_longer_takes_longer() -> None:
    blocks = distinct_blocks([architecture("d=64 vocab=9 | mlp xl-attn[heads=2]")])
    threads = torch.get_num_threads()
    for one in measure_scaling(blocks, (16, 512), Setting(), seconds=0.05):
        assert one.timings[1].seconds > 2 * one.timings[0].seconds
        assert one.exponent.low <= one.exponent.value <= one.exponent.high
    assert torch.get_num_threads() == threads


def test_what_cannot_be_run_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = distinct_blocks([architecture("d=16 vocab=9 kind=encoder | attn[heads=2,causal=false]")])
    with pytest.raises(UserError, match="cannot decode"):
        measure_scaling(blocks, (8, 16), Setting(mode="decode"))
    if not torch.cuda.is_available():
        with pytest.raises(UserError, match="no GPU"):
            measure_scaling(blocks, (8, 16), Setting(device="cuda"))

    def full(self: Layers) -> None:
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes.")

    monkeypatch.setattr(Layers, "run", full)
    with pytest.raises(UserError, match="of 8 tokens, batch 1, does not fit into memory"):
        measure_scaling(blocks, (8, 16), Setting())
