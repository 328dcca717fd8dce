"""Latency, memory and devices as LiteTransformerSearch measures and names them (arXiv:2203.02094), on this machine."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from plait.core.errors import UserError
from plait.device.profile import Point, Profile
from plait.device.setting import Setting
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.papers.lts.presets import rows
from plait.papers.verify import FactTable
from plait.space.table import load_space

if TYPE_CHECKING:
    from plait.device.latency import Timing
    from plait.device.memory import Memory

facts = FactTable()

# Equal decoder parameters to 0.4 %, aspect ratios d / layers of 8 and 512: Fig. 14's two ends.
DEEP = "d=128 vocab=512 tie=true norm=layer | (attn[heads=2,pos=none,bias] mlp[inner=512,act=relu])x16"
WIDE = "d=512 vocab=512 tie=true norm=layer | (attn[heads=2,pos=none,bias] mlp[inner=2064,act=relu])x1"


@cache
def _measured() -> list[tuple[Timing, Memory]]:
    """The deep and the wide one: 192 tokens, as the paper measures."""
    from plait.device.latency import measure_latency
    from plait.device.memory import MemoryMeter

    archs, setting = [architecture(text) for text in (DEEP, WIDE)], Setting()
    with MemoryMeter() as meter:
        return [(measure_latency(arch, setting, seconds=0.3), meter.measure(arch, setting)) for arch in archs]


@facts.fact("L18", "latency and memory come apart at equal decoder parameters (Fig. 14b, c), measured here")
def shapes() -> tuple[str, str, bool]:
    from plait.analysis.comparisons import aspect_study

    archs, costs = [architecture(text) for text in (DEEP, WIDE)], [model_cost(text) for text in (DEEP, WIDE)]
    study = aspect_study(
        [arch.header.d for arch in archs],
        [len(arch.layers) / 2 for arch in archs],
        [cost.decoder_params for cost in costs],
        {
            "latency": [timing.seconds for timing, _ in _measured()],
            "memory": [memory.peak for _, memory in _measured()],
        },
    )
    if len(study.groups) != 1:
        return "one group of equal size", f"{len(study.groups)} groups", False
    group = study.groups[0]
    latency, memory = group.spread["latency"], group.spread["memory"]
    ours = f"aspect {group.aspect[0]:g} to {group.aspect[1]:g}: latency {latency:.1f}×, memory {memory:.2f}×"
    good = group.aspect == (8.0, 512.0) and latency > 1.02 and memory > 1.02
    return "aspect 8 to 512: both differ (paper: 1.3× and 2.0×)", ours, good


@facts.fact(
    "L22", "latency and peak memory: 192 tokens (2048 against OPT), at least 10 repeats; the peak has its parts"
)
def harness() -> tuple[str, str, bool]:
    cost = model_cost(DEEP, seq=192)
    timing, memory = _measured()[0]
    weights, state, repeats = memory.weights, memory.state, timing.repeats
    lengths = Setting().seq, load_space("lts-opt").declared.seq
    positions = 16 * 8  # every attention layer keeps where it is
    exact = weights == 4 * cost.total_params and state == cost.state_bytes() + positions
    ours = f"{lengths[0]} and {lengths[1]} tokens; weights and state exact: {exact}; {repeats} repeats"
    good = lengths == (192, 2048) and exact and weights + state < memory.peak < 3 * weights and repeats >= 10
    return "192 and 2048 tokens; weights and state exact: True; 10 repeats or more", ours, good


@facts.fact(
    "L23", "hardware profiles: named, saved, loaded, refused elsewhere; four devices of the paper among presets"
)
def profiles() -> tuple[str, str, bool]:
    named = {row.device for row in rows()}
    made = Profile.here(Setting())
    made.points.append(Point("layer", "mlp[inner=64]", 32, "rms", "prefill", 192, 1, 1e-4, 0.01, False, 1000))
    with TemporaryDirectory(prefix="plait-verify-") as folder:
        path = Path(folder) / "here.json"
        made.save(path)
        same = Profile.load(path).hash == made.hash
        other = replace(made, device={**made.device, "cpu": "ARM CPU"})
        other.save(path)
        try:
            Profile.load(path)
            refused = False
        except UserError as why:
            refused = "ARM CPU" in str(why)
        anywhere = Profile.load(path, anywhere=True).hash == other.hash != made.hash
    ours = f"{', '.join(sorted(named))}; round trip {same}, refused {refused}, anywhere {anywhere}"
    told = "a6000, arm, corei7, titanxp; round trip True, refused True, anywhere True"
    return told, ours, ours == told and bool(made.device["cpu"])
