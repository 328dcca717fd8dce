"""Tiles of the kernels whose speed depends on them most: first whether each gives right results, then its time.

    python benchmarks/tiles.py FAMILY … [--seconds 120] [--out TILES.jsonl]

Families: scan, short-scan, narrow, few, conv, mamba2, deltanet, kda, swiglu. A tile's outputs and all gradients
are compared with float64 at lengths that are not multiples of it, including stacked replicas, with uninitialised memory
full of NaN, and twice for bitwise equality (`plait.device.kernel_guard`); a wrong tile is not timed. Times are medians
of a forward pass alone and of a forward with a backward pass.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from gpu_turn import TURN, aside_while_compiling

from plait.device import kernel_bench
from plait.device.kernel_bench import CASES, KernelCase, attention_case, conv_case, median_ms, scan_case
from plait.device.kernel_guard import Setting, guard
from plait.ops import (
    channel_delta_triton,
    delta_triton,
    few_queries_triton,
    gla_triton,
    narrow_attention_triton,
    scan,
    scan_triton,
    shortconv_triton,
    swiglu_mlp_triton,
)

BF16, FP32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Family:
    """An op, how a tile is put in use (what that returns puts the old one back), and at which shapes it is timed."""

    checked: list[tuple[KernelCase, list[Setting]]]
    timed: dict[str, tuple[KernelCase, int, int, torch.dtype, int]]  # case, batch, tokens, dtype, stacked members
    tiles: dict[str, Callable[[], Callable[[], None]]]


def put(module: Any, name: str, value: Any) -> Callable[[], Callable[[], None]]:
    def use() -> Callable[[], None]:
        before = getattr(module, name)
        setattr(module, name, value)
        return lambda: setattr(module, name, before)

    return use


def put_all(*uses: Callable[[], Callable[[], None]]) -> Callable[[], Callable[[], None]]:
    def use() -> Callable[[], None]:
        backs = [each() for each in uses]
        return lambda: [back() for back in reversed(backs)] and None

    return use


ScanTile = tuple[int, int, int, int, int]  # channels, warps, steps kept, registers, steps in a chunk


def scan_family(
    N: int, checked: int, timed: dict[str, tuple[KernelCase, int, int, torch.dtype, int]], tried: list[ScanTile]
) -> Family:
    """`checked`: channels, no multiple of a tile."""
    tiles = {}
    for channels, warps, kept, registers, chunk in tried:
        backward = scan_triton.Tile(channels, warps, kept=kept, registers=registers)
        tuned = {math.inf: scan_triton.tuning(N)._replace(backward=backward)}
        name = f"backward ({channels}, {warps}), {kept} kept, chunks of {chunk}"
        tiles[name + (f", {registers} registers" if registers else "")] = put_all(
            put(scan_triton, "TUNINGS", tuned), put(scan, "kernel_chunk", lambda *_, chunk=chunk: chunk)
        )
    lengths = [Setting(FP32, 1, ""), Setting(FP32, 65, ""), Setting(BF16, 200, ""), Setting(BF16, 65, "", 3)]
    return Family([(scan_case(f"scan E {checked} N {N}", checked, N), lengths)], timed, tiles)


def short_scan() -> Family:
    timed = {"fleet 24 x 128 x 128, E 256 N 4": (scan_case("", 256, 4), 128, 128, BF16, 24)}
    return scan_family(4, 70, timed, [
        (128, 1, 4, 0, 4), (128, 1, 4, 0, 16), (64, 1, 8, 0, 8), (64, 1, 4, 0, 4), (128, 1, 4, 168, 4),
        (128, 1, 4, 0, 8), (128, 1, 2, 128, 16), (64, 1, 4, 128, 16),
    ])  # fmt: skip


def long_scan() -> Family:
    timed = {"8 x 4096, E 1536 N 16": (scan_case("", 1536, 16), 8, 4096, BF16, 1)}
    return scan_family(16, 200, timed, [
        (32, 1, 4, 0, 32), (32, 1, 4, 0, 64), (32, 1, 1, 0, 64), (32, 1, 2, 0, 32), (64, 1, 2, 0, 64),
        (32, 1, 4, 0, 16),
    ])  # fmt: skip


def narrow() -> Family:
    """Softmax attention with heads of 8 channels, queries × keys of a tile, warps, registers and stages: the backward
    pass, behind the forward pass as it is, then the forward pass."""
    tiles = {}
    for rows, columns, warps, registers, stages in (
        (64, 64, 4, 128, 1), (64, 64, 4, 144, 1), (64, 64, 4, 128, 2), (32, 64, 2, 168, 2), (64, 128, 8, 128, 1),
        (64, 128, 4, None, 1),
    ):  # fmt: skip
        tile = {"ROWS": rows, "COLUMNS": columns, "num_warps": warps, "num_stages": stages, "maxnreg": registers}
        name = f"backward {rows} x {columns}, {warps} warps, {registers} registers, {stages} stages"
        tiles[name] = put(narrow_attention_triton, "BACKWARD", tile)
    for rows, columns, warps, stages in ((64, 64, 4, 1), (64, 64, 4, 3), (64, 128, 4, 2), (128, 64, 4, 2)):
        tile = {"ROWS": rows, "COLUMNS": columns, "num_warps": warps, "num_stages": stages}
        tiles[f"forward {rows} x {columns}, {warps} warps, {stages} stages"] = put(
            narrow_attention_triton, "FORWARD", tile
        )
    lengths = [Setting(BF16, T, "", members) for T, members in ((65, 1), (256, 1), (200, 3))]
    case = attention_case("attn", 16, 8)
    timed = {f"{n} x 128 x {T}": (case, 128, T, BF16, n) for n, T in ((6, 128), (6, 256), (2, 512), (1, 1024))}
    return Family([(case, lengths)], timed, tiles)


def few() -> Family:
    """The same for 16 queries at positions of their own: keys of a tile, warps and stages of both passes."""
    tiles = {}
    for columns, warps, stages in (
        (64, 4, 2), (64, 4, 1), (64, 4, 3), (64, 2, 2), (128, 4, 1), (128, 4, 2), (128, 8, 2), (32, 2, 3), (32, 1, 3),
        (256, 8, 1),
    ):  # fmt: skip
        tile = {"COLUMNS": columns, "num_warps": warps, "num_stages": stages}
        tiles[f"{columns} keys, {warps} warps, {stages} stages"] = put(few_queries_triton, "TILE", tile)
    lengths = [Setting(BF16, T, "", members) for T, members in ((65, 1), (256, 1), (200, 3))]
    case = CASES["attn-few"]
    timed = {f"{n} x 128 x {T}": (case, 128, T, BF16, n) for n, T in ((6, 256), (6, 1024))}
    return Family([(case, lengths)], timed, tiles)


def conv() -> Family:
    sizes = [(32, 64, 2), (64, 64, 8), (64, 64, 4), (32, 64, 4), (16, 64, 2), (16, 128, 2), (32, 128, 4), (16, 128, 4),
             (64, 32, 4), (16, 256, 4)]  # fmt: skip
    tiles = {}
    for size in sizes:
        tile = shortconv_triton.Tile(*size)
        tiles[str(size)] = put(shortconv_triton, "TUNED", shortconv_triton.Tuning(tile, tile, tile))
    lengths = [Setting(dtype, T, "", members) for T, members in ((1, 1), (65, 1), (200, 3)) for dtype in (BF16, FP32)]
    checked = [(conv_case("conv", 70), lengths), (conv_case("conv", 200, 3, silu=False), lengths[2:])]
    timed = {
        "8 x 4096 x 1792": (conv_case("conv", 1792), 8, 4096, BF16, 1),
        "8 x 4096 x 768": (conv_case("conv", 768), 8, 4096, BF16, 1),
        "8 x 4096 x 2304": (conv_case("conv", 2304), 8, 4096, BF16, 1),
        "fleet 24 x 128 x 128 x 256": (conv_case("conv", 256), 128, 128, BF16, 24),
    }
    return Family(checked, timed, tiles)


def mamba2() -> Family:
    usual = gla_triton.tuning(128, 64, BF16, False)
    Tile = gla_triton.Tile
    tried = {"as it is": usual}
    some_tiles = (Tile(64, 64, 8, 2), Tile(64, 64, 4, 2), Tile(64, 64, 4, 1), Tile(64, 64, 4, 3), Tile(128, 64, 8, 2))
    for name in ("keys", "values", "outputs"):
        for tile in some_tiles:
            if tile != getattr(usual, name):
                tried[f"{name} {tuple(tile[:4])}"] = usual._replace(**{name: tile})
    tried["states (64, 64, 4, 2)"] = usual._replace(states=Tile(64, 64, 4, 2))
    for parts in (2, 6, 8):
        tried[f"parts {parts}"] = usual._replace(parts=parts)
    four = Tile(64, 64, 4, 2)
    tried["values and keys (64, 64, 4, 2)"] = usual._replace(values=four, keys=four)
    of = gla_triton.tuning

    def chosen(tuned: Any) -> Any:
        return lambda K, V, dtype, vector: of(K, V, dtype, vector) if vector or dtype == FP32 else tuned

    tiles = {name: put(gla_triton, "tuning", chosen(tuned)) for name, tuned in tried.items()}
    case, retnet = CASES["mamba2"], CASES["retnet"]
    some = [Setting(BF16, T, "mixed") for T in (1, 65, 200)]
    some += [Setting(BF16, 65, "strong"), Setting(BF16, 65, "mixed", 3)]
    narrow = [Setting(BF16, 200, "mixed", 1, 8), Setting(BF16, 200, "mixed", 1, 16)]
    timed = {"8 x 4096, H 24 K 128 V 64": (case, 8, 4096, BF16, 1), "8 x 4096, retnet": (retnet, 8, 4096, BF16, 1)}
    return Family([(case, some + narrow), (retnet, some[1:2])], timed, tiles)


def _delta(module: Any, name: str, case: KernelCase, *wide: int) -> Family:
    """`wide`: at which width the tiles are those of the table, where they depend on it."""
    of, Tuning = getattr(module, name), delta_triton.Tuning
    usual = of(BF16, *wide)
    tried = {"as it is": usual}
    for kernel in usual._fields[1:]:
        values, warps, stages = getattr(usual, kernel)
        other = 2 if stages == 1 else 1
        for tile in ((values, 8, stages), (values, 2, stages), (values, warps, other), (values * 2, warps, stages)):
            tried[f"{kernel} {tile}"] = usual._replace(**{kernel: Tuning(*tile)})

    def chosen(tuned: Any) -> Any:
        return lambda dtype, *wide: of(dtype, *wide) if dtype == FP32 else tuned

    tiles = {each: put(module, name, chosen(tuned)) for each, tuned in tried.items()}
    decays = "mixed" if "g" in case.draw(1, 1, torch.Generator().manual_seed(0)) else ""
    some = [Setting(BF16, T, decays) for T in (1, 65, 200)]
    some += [Setting(BF16, 200, decays, 1, width) for width in case.narrow]
    return Family([(case, some)], {f"8 x 4096, {case.name}": (case, 8, 4096, BF16, 1)}, tiles)


def swiglu() -> Family:
    """A whole SwiGLU: tokens and inner channels of a tile, warps, stages and registers, forward and backward."""
    tiles = {}
    for forward, backward in (
        ((128, 32, 8, 3, 128), (64, 32, 4, 3)), ((128, 32, 8, 3, 128), (128, 32, 8, 3)),
        ((128, 64, 8, 3), (64, 32, 4, 3)), ((64, 32, 4, 3, 128), (128, 64, 8, 3)),
    ):  # fmt: skip
        use = [put(swiglu_mlp_triton, "FORWARD", swiglu_mlp_triton.Tile(*forward))]
        use += [put(swiglu_mlp_triton, "BACKWARD", swiglu_mlp_triton.Tile(*backward))]
        tiles[f"{forward}, {backward}"] = put_all(*use)
    lengths = [Setting(BF16, T, "", members) for T, members in ((1, 1), (200, 1), (128, 3))]
    case = CASES["swiglu"]
    checked = [(case, lengths), (case.narrow[72], lengths[1:2])]
    return Family(checked, {"6 x 128 x 128": (case, 128, 128, BF16, 6)}, tiles)


FAMILIES: dict[str, Callable[[], Family]] = {
    "scan": long_scan,
    "short-scan": short_scan,
    "narrow": narrow,
    "few": few,
    "conv": conv,
    "mamba2": mamba2,
    "deltanet": lambda: _delta(delta_triton, "tunings", CASES["gated-deltanet"]),
    "kda": lambda: _delta(channel_delta_triton, "channel_tunings", CASES["kda"], 128),
    "swiglu": swiglu,
}


@contextmanager
def using(tile: Callable[[], Callable[[], None]]) -> Iterator[None]:
    back = tile()
    try:
        yield
    finally:
        back()


def worst_of(family: Family, device: torch.device) -> tuple[float, str]:
    """The largest error as a share of what is allowed, and where."""
    worst, where = 0.0, ""
    for case, settings in family.checked:
        for setting in settings:
            with TURN.shared():
                found = guard(case, setting, device)
            share = found.error / found.limit if found.same else float("inf")
            if share >= worst:
                worst, where = share, f"{case.name}, {found.dtype}, {found.setting}: {found.worst} {found.error:.1e}"
    return worst, where


def times(
    case: KernelCase, batch: int, tokens: int, dtype: torch.dtype, members: int, device: torch.device
) -> list[float]:
    drawn = kernel_bench._drawn(case, batch, tokens, device, dtype)
    if members == 1:
        run, inputs = case.ours, drawn
    else:  # as a fleet has them
        run = torch.func.vmap(case.ours)
        inputs = {name: torch.stack([x.detach()] * members).requires_grad_() for name, x in drawn.items()}
    do, leaves = torch.randn_like(run(inputs)), list(inputs.values())
    with torch.no_grad():
        forward = median_ms(captured(lambda: run(inputs)), device, 10)
    backward = captured(lambda: torch.autograd.grad(run(inputs), leaves, do, allow_unused=True))
    return [forward, median_ms(backward, device, 10)]


def captured(call: Callable[[], Any]) -> Callable[[], None]:
    """The call as a graph, as a fleet replays it: launching many small operations one by one takes longer than they."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def best_times(sizes: Any, device: torch.device) -> list[float]:
    """Of three times."""
    found = []
    for _ in range(3):
        with TURN.shared() if len(found) == 0 else TURN.alone():  # the first one compiles
            found.append(times(*sizes, device))
            torch.cuda.empty_cache()
    return [min(each) for each in zip(*found[1:], strict=True)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="+", choices=list(FAMILIES))
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument(
        "--part", type=int, nargs=2, default=(0, 1), metavar=("I", "N"), help="every Nth tile from I on"
    )
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    begun, device = time.perf_counter(), torch.device("cuda")
    os.nice(5)
    aside_while_compiling()
    for name in asked.families:
        family = FAMILIES[name]()
        for tile, use in list(family.tiles.items())[asked.part[0] :: asked.part[1]]:
            if time.perf_counter() - begun > asked.seconds:
                print(name, "no time for the rest", flush=True)
                break
            row: dict[str, Any] = {"family": name, "tile": tile}
            try:
                with using(use):
                    row["share"], row["worst"] = worst_of(family, device)
                    if row["share"] <= 1:
                        for shape, sizes in family.timed.items():
                            row[shape] = best_times(sizes, device)
            except Exception as wrong:
                row["failure"] = f"{type(wrong).__name__}: {wrong}"[:300]
            shown = ", ".join(f"{shape}: {x[0]:.3f} / {x[1]:.3f} ms" for shape, x in row.items() if isinstance(x, list))
            state = row.get("failure") or ("right" if row["share"] <= 1 else "WRONG")
            at = f"[{time.perf_counter() - begun:5.1f}]"
            print(at, f"{name} {tile}: {state} ({row.get('worst')}); {shown}", flush=True)
            if asked.out:
                with open(asked.out, "a") as file:
                    file.write(json.dumps(row) + "\n")


if __name__ == "__main__":
    main()
