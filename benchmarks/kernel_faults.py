"""Kernels one way at a time: for compute-sanitizer and for long runs of real shapes.

    export PYTORCH_NO_CUDA_MEMORY_CACHING=1     # every tensor its own allocation: what leaves one is seen
    compute-sanitizer python benchmarks/kernel_faults.py step[:REPLICAS,BATCH,TOKENS] SPEC …
    compute-sanitizer python benchmarks/kernel_faults.py step \
        'd=128 vocab=256 tie=true | mamba[expand=1.90625]' 'd=128 vocab=256 tie=true | attn[heads=4] swiglu gla swiglu'
    [compute-sanitizer] python benchmarks/kernel_faults.py MODE DECAY:K:V[:KERNEL=BV,WARPS,STAGES] …

`step`: training steps and a scoring of a stacked ensemble as `truth.py` has it (6 replicas, batches of 32 × 256 tokens,
bf16), one part after the other: the recorded gradient, which launches plait's operators and torch's own, the same
compiled, three times, then captured as a graph and replayed, the stacked scoring, and one replica alone. Each waits for
the device, so the part that a fault belongs to is the first that is not printed. With PYTORCH_NO_CUDA_MEMORY_CACHING=1
nothing is captured. `CUDA_LAUNCH_BLOCKING=1` says on which line. The others are about the delta rule:

MODE: small, exact, long[:RUNS] or time; DECAY: none, head or channel. `small`: two odd lengths, slices of a fused
projection, once; `exact`: the errors of output and gradients against float64, 200 tokens, memory that nobody wrote full
of NaN; `long`: 8 × 4096 tokens, RUNS times, whose first and last results must have the same bits; `time`: its
milliseconds, forward and with backward. A kernel can get another tile. Needs a CUDA device.
"""

from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
import torch
from gpu_turn import TURN, aside_while_compiling
from torch import Tensor

from plait.device import kernel_guard
from plait.device.kernel_bench import delta_case, median_ms
from plait.ops import channel_delta_triton, delta_triton
from plait.ops.channel_delta import channel_delta_kernels
from plait.ops.delta import delta_kernels

STEP = "6,32,256"  # replicas, batch and tokens of the truth table

CUDA = torch.device("cuda")


def draw(B: int, T: int, H: int, K: int, V: int, decay: str, sliced: bool) -> list[Tensor | None]:
    stream = torch.Generator(CUDA).manual_seed(T)
    whole = K**-0.5 * torch.randn(B, T, H, 2 * K + V + 8, device=CUDA, generator=stream)
    q, k, v = whole.bfloat16()[..., 8:].split((K, K, V), dim=-1)  # keys of about length 1
    if not sliced:
        q, k, v = (x.contiguous() for x in (q, k, v))
    beta = torch.rand(B, T, H, device=CUDA, generator=stream)
    if decay == "channel":
        g = -torch.exp(15.6 * torch.rand(B, T, H, K, device=CUDA, generator=stream) - 13)
        return [q, k * beta[..., None].bfloat16(), k, v, g, None]
    g = -torch.exp(15.6 * torch.rand(B, T, H, device=CUDA, generator=stream) - 13)
    return [q, k, v, beta, g if decay == "head" else None, None]


def both(inputs: list[Tensor | None], decay: str) -> list[Tensor]:
    leaves = [None if x is None else x.detach().requires_grad_() for x in inputs]
    op = channel_delta_kernels if decay == "channel" else delta_kernels
    o, _ = op(*leaves, 0.1)
    return [o.detach(), *torch.autograd.grad(o, [x for x in leaves if x is not None], torch.ones_like(o))]


def exact(K: int, V: int, decay: str) -> str:
    """The error of every tensor, relative to its largest value."""
    case = delta_case(decay, 4, K, V, decay=decay)
    setting = kernel_guard.Setting(torch.bfloat16, 200, "" if decay == "none" else "mixed")
    given = kernel_guard._drawn(case, setting, torch.Generator(CUDA).manual_seed(200))
    with kernel_guard.unwritten_memory_is_nan():
        found, again = (kernel_guard._results(case.ours, [given])[0] for _ in range(2))
    wanted = kernel_guard._exact(case, given)
    same = all(torch.equal(a, b) for a, b in zip(found, again, strict=True))
    gaps = [float((x.double() - y).abs().max() / y.abs().max()) for x, y in zip(found, wanted, strict=True)]
    verdict = "right" if same and all(gap <= 1e-2 for gap in gaps) else "WRONG"
    return (
        verdict
        + ("" if same else ", OTHER BITS")
        + "".join(f", {name} {gap:.1e}" for name, gap in zip(("output", *given), gaps, strict=True))
    )


def step(spec: str, replicas: int, batch: int, tokens: int, device: torch.device = CUDA) -> str:
    """What of a stacked ensemble's step ran through, and its loss."""
    from plait.model.architecture import architecture
    from plait.ops.paths import autocast_on
    from plait.training.recipe import Recipe
    from plait.training.track import Replica, Text, Track, track_recipe

    on_gpu, begun = device.type == "cuda", time.perf_counter()

    def ran(part: str, losses: Any) -> None:
        if on_gpu:
            torch.cuda.synchronize()
        loss = float(torch.as_tensor(losses).double().mean())
        print(f"  {part}: loss {loss:.4f} [{time.perf_counter() - begun:.1f} s]", flush=True)

    arch = architecture(spec)
    text = np.random.default_rng(0).integers(0, arch.header.vocab, 100 * batch * (tokens + 1))
    cut = Text.cut("random", text, text, tokens, 2 * batch * tokens)
    recipe = track_recipe(Recipe(batch=batch, seq_len=tokens), 10)
    members = [Replica(1e-3, seed) for seed in range(replicas)]
    track = Track(arch, members, [cut], recipe, device=device)
    stepper, rows = track._stepper, track._starts(0)
    step = stepper.prepared(rows) if on_gpu else stepper._advance
    with autocast_on(device):
        ran("recorded", stepper._gradients(track.params, *track.batch(rows))[1])
    ran("compiled", step(*track.batch(rows)))
    ran("compiled, twice more", [step(*track.batch(rows)) for _ in range(2)][-1])
    if on_gpu and not os.environ.get("PYTORCH_NO_CUDA_MEMORY_CACHING"):  # without it nothing can be captured
        stepper._capture(rows, step)
        ran("captured", stepper._loss_M)
        ran("replayed", track.advance_to(20))
    ran("scored", track.score())
    one_by_one = Track(arch, members[:1], [cut], recipe, device=device, compiled=False)
    with autocast_on(device):
        ran("one replica", one_by_one._stepper._one_by_one(one_by_one.params, *one_by_one.batch(rows[:1]))[1])
    return "ran"


def run(mode: str, case: str) -> str:
    mode, _, size = mode.partition(":")
    if mode == "step":
        with TURN.shared():
            return step(case, *map(int, (size or STEP).split(",")))
    decay, K, V, *tile = case.split(":")
    module, name = (channel_delta_triton, "channel_tunings") if decay == "channel" else (delta_triton, "tunings")
    usual = getattr(module, name)
    if tile:
        kernel, numbers = tile[0].split("=")
        own = delta_triton.Tuning(*map(int, numbers.split(",")))
        setattr(module, name, lambda *given: usual(*given)._replace(**{kernel: own}))
    sizes = int(K), int(V)
    try:
        if mode == "exact":
            with TURN.shared():
                return exact(*sizes, decay)
        if mode == "small":
            for T, sliced in ((63, False), (130, True)):
                found = both(draw(2, T, 3, *sizes, decay, sliced), decay)
                torch.cuda.synchronize()
                if not all(bool(x.isfinite().all()) for x in found):
                    return "NOT FINITE"
            return "ran"
        inputs = draw(8, 4096, 768 // int(K), *sizes, decay, False)
        if mode == "time":
            with torch.no_grad():
                op = channel_delta_kernels if decay == "channel" else delta_kernels
                forward = median_ms(lambda: op(*inputs, 0.1), CUDA, 10)
            return f"forward {forward:.3f} ms, with backward {median_ms(lambda: both(inputs, decay), CUDA, 10):.3f} ms"
        first = both(inputs, decay)
        for _ in range(int(size or 300)):
            last = both(inputs, decay)
        torch.cuda.synchronize()
        return "same bits" if all(torch.equal(a, b) for a, b in zip(first, last, strict=True)) else "OTHER BITS"
    finally:
        setattr(module, name, usual)


if __name__ == "__main__":
    aside_while_compiling()
    for case in sys.argv[2:]:
        begun = time.perf_counter()
        print(sys.argv[1], case, run(sys.argv[1], case), f"[{time.perf_counter() - begun:.1f} s]", flush=True)
