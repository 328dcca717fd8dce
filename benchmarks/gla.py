"""Gated linear attention's kernels on a GPU: right at hard shapes, then tile by tile, ours beside others' in one run.

    python benchmarks/gla.py [check:SECONDS] [length:T] [tiles:OP:SECONDS] [bench:OP:OP…]

`check`: relative errors of outputs and gradients in bf16 and fp32 against float64, weak to strong decays. `length`: the
same at one long length. `tiles`: milliseconds of every kernel at several tiles, for `plait.ops.gla_triton.tuning`.
`bench`: the table of `plait bench kernels`. Needs a CUDA device.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from plait.device.kernel_bench import CASES
from plait.ops import gla_triton as kernels
from plait.ops.gla import gla, gla_reference

CUDA = torch.device("cuda")
DECAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "mixed": lambda u: -torch.exp(16.4 * u - 13.8),
    "weak": lambda u: torch.full_like(u, -1e-6),
    "strong": lambda u: torch.full_like(u, -13.8),
    "bursts": lambda u: torch.where(u < 0.2, -13.8, -1e-2),
    "extreme": lambda u: torch.where(u < 0.3, -1e9, 0.0),
}


def errors(dtype: torch.dtype, T: int, H: int, G: int, K: int, V: int, kind: str, decays: str) -> dict[str, float]:
    stream = torch.Generator(CUDA).manual_seed(T)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, device=CUDA, generator=stream)

    shape = (1, T, H) if kind == "head" else (1, T, H, K)
    g = DECAYS[decays](torch.rand(shape, device=CUDA, generator=stream))
    q, k, v = (x.to(dtype) for x in (normal(1, T, G, K), normal(1, T, G, K), normal(1, T, H, V)))
    given = [q, k, v, g, normal(1, H, K, V)] + ([normal(H, K)] if kind == "bonus" else [])
    weights = normal(1, T, H, V), normal(1, H, K, V)

    def results(op, exact: bool) -> list[Tensor]:
        leaves = [(x.double() if exact else x.clone()).requires_grad_() for x in given]
        q, k = (x.repeat_interleave(H // G, dim=2) if exact else x for x in leaves[:2])
        bonus = leaves[5] if kind == "bonus" else None
        o, state = op(q, k, leaves[2], leaves[3], scale=K**-0.5, state=leaves[4], bonus=bonus)
        loss = (o * weights[0].to(o)).sum() + (state * weights[1].to(state)).sum()
        return [o.detach(), state.detach(), *torch.autograd.grad(loss, leaves)]

    names = ("o", "S", "dq", "dk", "dv", "dg", "dS", "du")
    pairs = zip(results(gla, False), results(gla_reference, True), strict=True)
    return {
        name: float((ours.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-30))
        for name, (ours, exact) in zip(names, pairs, strict=False)
    }


def check(seconds: float, *only: str) -> None:
    """The worst errors by dtype; hardest shapes first, until the time is up. `only` some kinds and dtypes."""
    begun, worst, count = time.perf_counter(), {}, 0
    shapes = [(197, 2, 2, 96, 192), (130, 4, 2, 128, 64), (1, 2, 2, 16, 16), (65, 3, 3, 40, 24)]
    wanted = [
        (dtype, *shape, kind, decays)
        for shape in shapes
        for decays in DECAYS
        for kind in ("channel", "head", "bonus")
        for dtype in (torch.bfloat16, torch.float32)
        if not only or (kind in only and str(dtype)[6:] in only)
    ]
    for dtype, T, H, G, K, V, kind, decays in wanted:
        if kind != "head":
            G = H
        found = errors(dtype, T, H, G, K, V, kind, decays)
        count += 1
        limit = 1e-2 if dtype == torch.bfloat16 else 1e-5
        for name, error in found.items():
            if not error <= limit:
                print(f"  OFF {dtype} T{T} H{H} G{G} K{K} V{V} {kind} {decays} {name}: {error:.1e}", flush=True)
            key = (str(dtype)[6:], kind)
            if not error <= worst.get(key, (0.0, ""))[0]:
                worst[key] = (error, f"{name} {decays} T{T} K{K} V{V}")
        if time.perf_counter() - begun > seconds:
            break
    print(f"checked {count} of {len(wanted)} settings, {time.perf_counter() - begun:.0f} s")
    for key, (error, where) in worst.items():
        print(f"  worst {key}: {error:.1e} ({where})", flush=True)


def check_length(T: int) -> None:
    """Long sequences against the same op in float64 in chunks (held to the definition on short ones)."""
    from plait.ops.paths import plain_ops

    for name in ("gla", "mamba2"):
        case = CASES[name]
        for dtype in (torch.bfloat16, torch.float32):
            drawn = case.draw(1, T, torch.Generator(CUDA).manual_seed(0))
            given = {n: x.to(torch.float32 if n in case.wide else dtype) for n, x in drawn.items()}
            do = torch.randn_like(given["v"])

            def results(exact: bool, case=case, given=given, do=do) -> list[Tensor]:
                leaves = {n: (x.double() if exact else x.clone()).requires_grad_() for n, x in given.items()}
                o = case.ours(leaves)
                return [o, *torch.autograd.grad(o, list(leaves.values()), do.to(o))]

            with plain_ops():
                exact = results(True)
            gap = [
                float((a.double() - b).abs().max() / b.abs().max()) for a, b in zip(results(False), exact, strict=True)
            ]
            print(f"  {name} T {T} {str(dtype)[6:]}: " + " ".join(f"{x:.1e}" for x in gap), flush=True)


#: Tiles (keys, values, warps, stages) to try, and the kernels that have them.
STATES = [(64, 64, 4, 1, 128), (64, 32, 4, 1, 128), (64, 64, 8, 1, 128), (32, 64, 4, 1, 128), (32, 32, 4, 1, 128)]
OTHERS = [
    (64, 64, 4, 1),
    (64, 64, 8, 2),
    (64, 64, 8, 1, 128),
    (64, 32, 4, 1, 168),
    (32, 64, 4, 1, 168),
    (64, 64, 4, 2),
    (64, 64, 8, 1),
]
CHOICES = {
    "keys": ([*OTHERS, (32, 32, 8, 1, 128)], ("backward_channels", "backward_keys")),
    "states": (STATES, ("states", "states_and_gradients")),
    "outputs": ([*OTHERS, (32, 128, 4, 1)], ("outputs",)),
    "values": (OTHERS, ("backward_written", "backward_values")),
}
KERNELS = ("cumulate", "states", "states_and_gradients", "outputs", *CHOICES["values"][1], *CHOICES["keys"][1])


class Timed:
    """A kernel whose every launch leaves its two events."""

    def __init__(self, kernel: Any, name: str, spent: dict[str, list[Any]]) -> None:
        self.kernel, self.name, self.spent = kernel, name, spent

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **options: Any) -> None:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            self.kernel[grid](*args, **options)
            end.record()
            self.spent.setdefault(self.name, []).append((start, end))

        return launch


def tiles(name: str, seconds: float) -> None:
    """Milliseconds of one kernel at a time, at several tiles; the others stay as they are."""
    begun, case, spent = time.perf_counter(), CASES[name], {}
    drawn = case.draw(8, 4096, torch.Generator(CUDA).manual_seed(0))
    x = {n: t.to(torch.float32 if n in case.wide else torch.bfloat16) for n, t in drawn.items()}
    own = None if "bonus" not in x else (x["q"] * x["k"] * x["bonus"]).sum(-1, dtype=torch.float32)
    args = x["q"], x["k"], x["v"], x["g"], own, None, 0.1
    base = kernels.tuning(x["q"].shape[3], x["v"].shape[3], torch.bfloat16, x["g"].dim() == 4)
    do = torch.randn_like(x["v"])

    wanted: list[Tensor] = []

    def measured(tuned: kernels.Tuning) -> dict[str, float]:
        """Also whether the results are those of the first tiles, up to rounding."""
        for repeats in (1, 5):
            spent.clear()
            for _ in range(repeats):
                o, _ = kernels.gla_forward(*args, tuned=tuned)
                found = [o, *kernels.gla_backward(do, None, *args, tuned=tuned)[:4]]
            torch.cuda.synchronize()
        wanted.extend(found if not wanted else ())
        pairs = zip(found, wanted, strict=True)
        gap = max(float((x - y).abs().max() / y.abs().max()) for x, y in pairs)
        if not gap < 1e-2:
            raise ValueError(f"results differ by {gap:.1e}")
        return {n: sorted(a.elapsed_time(b) for a, b in pairs)[len(pairs) // 2] for n, pairs in spent.items()}

    original = {n: getattr(kernels, n) for n in KERNELS}
    for n, kernel in original.items():
        setattr(kernels, n, Timed(kernel, n, spent))
    try:
        print(name, "as chosen:", " ".join(f"{n} {ms:.3f}" for n, ms in measured(base).items()), flush=True)
        if x["g"].dim() == 3:
            wide = kernels.Tile(64, 64, 8, 1, 168)
            found = measured(base._replace(chunk=128, states=wide, outputs=wide, values=wide, keys=wide))
            print("  chunk 128:", " ".join(f"{n} {ms:.3f}" for n, ms in found.items()), flush=True)
        for field, option in ((field, option) for field, (options, _) in CHOICES.items() for option in options):
            if time.perf_counter() - begun > seconds:
                print("  time is up", flush=True)
                return
            try:
                found = measured(base._replace(**{field: kernels.Tile(*option)}))
                text = " ".join(f"{found[n]:.3f}" for n in CHOICES[field][1] if n in found)
            except Exception as problem:
                text = f"{type(problem).__name__} {str(problem)[:80]}"
            print(f"  {field} {option}: {text}", flush=True)
    finally:
        for n, kernel in original.items():
            setattr(kernels, n, kernel)


def bench(*names: str) -> None:
    import plait

    found = plait.bench.kernels(*names, repeats=10)
    print(found.device, found.versions)
    for row in found.rows():
        print("  " + " ".join(f"{x:.3g}" if isinstance(x, float) else str(x) for x in row.values()), flush=True)


if __name__ == "__main__":
    parts = {
        "check": lambda seconds="20", *only: check(float(seconds), *only),
        "length": lambda T="16384": check_length(int(T)),
        "tiles": lambda name, seconds="15": tiles(name, float(seconds)),
        "bench": bench,
    }
    for asked in sys.argv[1:]:
        part, *given = asked.split(":")
        begun = time.perf_counter()
        parts[part](*given)
        print(f"[{asked}: {time.perf_counter() - begun:.0f} s]", flush=True)
