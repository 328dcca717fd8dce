"""LiteTransformerSearch (Javaheripi et al. 2022, arXiv:2203.02094): its measurements, on this machine, and its studies,
whose definitions are tried on cases worked by hand.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING
from xml.etree import ElementTree

import numpy as np

from plait.analysis.comparisons import find_matched_pairs
from plait.analysis.fronts import front_distance, lower_hull
from plait.analysis.pareto import pareto_front
from plait.analysis.rank import common_ratio, spearman, top_spearman
from plait.analysis.table import Table
from plait.core.errors import UserError
from plait.device.profile import Point, Profile
from plait.device.quantities import Setting
from plait.model.architecture import architecture
from plait.model.cost import model_cost
from plait.papers.lts.presets import rows
from plait.papers.verify import FactTable
from plait.reporting.front import Model, cube_chart
from plait.space.table import load_space

if TYPE_CHECKING:
    from plait.device.latency import Timing
    from plait.device.memory import Memory


facts = FactTable()

# Equal decoder parameters to 0.4 %, aspect ratios d / layers of 8 and 512: Fig. 14's two ends. The vocabulary is large
# beside the decoder, as the paper's is: the wide one pays for it in both.
DEEP = "d=128 vocab=16384 tie=true norm=layer | (attn[heads=2,pos=none,bias] mlp[inner=512,act=relu])x16"
WIDE = "d=512 vocab=16384 tie=true norm=layer | (attn[heads=2,pos=none,bias] mlp[inner=2064,act=relu])x1"


@cache
def _measured() -> list[tuple[Timing, Memory]]:
    """The deep and the wide one: 192 tokens, as the paper measures."""
    from plait.device.latency import measure_latency
    from plait.device.memory import MemoryMeter

    archs, setting = [architecture(text) for text in (DEEP, WIDE)], Setting()
    least = 3 * 12  # on a crowded machine two of three repeats may be disturbed
    with MemoryMeter() as meter:
        # What else a process does adds to its peak and takes nothing from it: the least of three.
        memories = [
            min((meter.measure(arch, setting) for _ in range(3)), key=lambda memory: memory.peak) for arch in archs
        ]
        return [
            (measure_latency(arch, setting, seconds=0.3, least=least), memory)
            for arch, memory in zip(archs, memories, strict=True)
        ]


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
    profile = Profile.here(Setting())
    profile.points.append(Point("layer", "mlp[inner=64]", 32, "rms", "prefill", 192, 1, 1e-4, 0.01, False, 1000))
    with TemporaryDirectory(prefix="plait-verify-") as folder:
        path = Path(folder) / "here.json"
        profile.save(path)
        same = Profile.load(path).hash == profile.hash
        other = replace(profile, device={**profile.device, "cpu": "ARM CPU"})
        other.save(path)
        try:
            Profile.load(path)
            refused = False
        except UserError as why:
            refused = "ARM CPU" in str(why)
        anywhere = Profile.load(path, anywhere=True).hash == other.hash != profile.hash
    ours = f"{', '.join(sorted(named))}; round trip {same}, refused {refused}, anywhere {anywhere}"
    published = "a6000, arm, corei7, titanxp; round trip True, refused True, anywhere True"
    return published, ours, ours == published and bool(profile.device["cpu"])


@facts.fact("L11", "2-D and 3-D Pareto fronts, lower convex hull")
def fronts() -> tuple[str, str, bool]:
    """A thousand models against the definition, and five of which one is on the front and above the hull (App. C)."""
    models = np.random.default_rng(0).integers(0, 30, (1000, 3))
    agree = 0
    for objectives in (2, 3):
        points = models[:, :objectives]
        below = (points[:, None] <= points).all(axis=2) & (points[:, None] < points).any(axis=2)
        agree += np.array_equal(pareto_front(points), ~below.any(axis=0))
    corners = lower_hull([1, 2, 3, 4, 5], [10, 4, 3.9, 1, 2]).tolist()
    ours = f"{agree} of 2 fronts as defined; corners {corners}"
    return "2 of 2 fronts as defined; corners [0, 1, 3]", ours, agree == 2 and corners == [0, 1, 3]


@facts.fact("L12", "d_avg, the distance of two fronts (eq. 2)")
def distance() -> tuple[str, str, bool]:
    """Latency 11 is nearest to 10, with 55 for 50; 26 is nearest to 30, with 36 for 30."""
    mean = front_distance([10, 20, 30, 11, 26], [50, 40, 30, 55, 36], claimed=[3, 4], true_front=[0, 1, 2]).mean
    return "(10 % + 20 %) / 2 = 15 %", f"{100 * mean:.6g} %", abs(mean - 0.15) < 1e-12


@facts.fact("L13", "Spearman correlation and common ratio over the top k %")
def ranking() -> tuple[str, str, bool]:
    """Ten models; the proxy has the second of them last and turns the order of the others but three."""
    truth = np.arange(10, 0, -1)
    proxy = np.array([10, 1, 9, 8, 2, 3, 4, 5, 6, 7])
    textbook = 1 - 6 * int(((proxy - truth) ** 2).sum()) / (10 * (10**2 - 1))  # holds where nothing ties
    actual = spearman(proxy, truth), top_spearman(proxy, truth, 40), common_ratio(proxy, truth, 40)
    expected = textbook, 0.4, 0.75
    published, ours = ("SRC {:.4f}, SRC(40 %) {:.4f}, CR(40 %) {:.2f}".format(*values) for values in (expected, actual))
    return published, ours, np.allclose(actual, expected, rtol=0, atol=1e-12)


@facts.fact("L21", "3-D view and matched pairs (Fig. 15): equal on two axes, far apart on the third")
def matched_pairs() -> tuple[str, str, bool]:
    """Fig. 15's two pairs, planted among five models: 2× in latency, 30 MB in memory; drawn over all three axes."""
    params = np.array([10.0, 10.05, 20.0, 20.1, 30.0])
    latency = np.array([50.0, 100.0, 70.0, 70.5, 90.0])
    memory = np.array([200.0, 201.0, 310.0, 340.0, 400.0])
    red = find_matched_pairs(np.column_stack([params, memory]), latency)
    green = find_matched_pairs(np.column_stack([params, latency]), memory)
    matched = [(pair.low, pair.high, pair.ratio, pair.difference) for pair in (*red, *green)]
    pairs = "; ".join(f"models {low} and {high}: {ratio:.3g}×, {gap:g}" for low, high, ratio, gap in matched)
    models = [Model(values, f"model {at}") for at, values in enumerate(zip(params, latency, memory, strict=True))]
    picture = ElementTree.fromstring(cube_chart(models, ["parameters", "latency", "memory"], "Fig. 15"))
    hints = Counter(mark.findtext("{*}title") for mark in picture.iter() if "cx" in mark.attrib)
    drawn = [hints[model.hint] for model in models]
    # Each model is in the cube and in the three pairs of axes.
    good = matched == [(0, 1, 2.0, 50.0), (2, 3, 340 / 310, 30.0)] and drawn == [4] * 5
    return "models 0 and 1: 2×, 50; models 2 and 3: 1.1×, 30; drawn 4 × 5", f"{pairs}; drawn {drawn}", good


@facts.fact("L34", "analysis of an external benchmark's table")
def external() -> tuple[str, str, bool]:
    """A table as the NMT benchmark's: parameters help in one language pair and hurt in the other, by BLEU and PPL."""
    rows = [
        {"pair": pair, "params": size, "bleu": sign * size + 50, "ppl": 50 - sign * size}
        for pair, sign in (("ja-en", 1), ("so-en", -1))
        for size in range(1, 11)
    ]
    correlations = {
        pair: (
            spearman(part.numbers("params"), part.numbers("bleu")),
            spearman(part.numbers("params"), -part.numbers("ppl")),
        )
        for pair, part in Table.of("nmt", rows).groups("pair").items()
    }
    ours = "; ".join(f"{pair} BLEU {bleu:+.0f}, PPL {ppl:+.0f}" for pair, (bleu, ppl) in correlations.items())
    expected = {"ja-en": (1.0, 1.0), "so-en": (-1.0, -1.0)}
    return "ja-en BLEU +1, PPL +1; so-en BLEU -1, PPL -1", ours, correlations == expected
