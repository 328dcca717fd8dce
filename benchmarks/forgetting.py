"""Forgetting attention on a GPU: our kernels beside torch's softmax attention and other forgetting attentions.

    python benchmarks/forgetting.py [--others] [--quick]

32,768 tokens, 16 heads, bf16; milliseconds forward and forward + backward (all gradients), the median of
`triton.testing.do_bench`. Outputs and gradients are checked against the definition first. Two kinds of gates: *open*
(log f = −1e-4, nothing can be left out) and *mixed*, logsigmoid(b_h + ε) with ε ~ N(0, 1) and the heads' time
constants spread from 2 to 2048 tokens, with and without leaving out forgotten tiles. `--others` adds FlexAttention
with a gate and flash-linear-attention (where installed): both spend long in compilation. Needs a CUDA device.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
import triton
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from plait import __version__
from plait.ops.attention import attention_reference
from plait.ops.forgetting_attention import forgetting_attention

TOKENS, HEADS = 32768, 16
SHAPES = [(2048, 64), (4096, 64), (16384, 64), (4096, 128), (16384, 128)]  # length, head width

Run = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


def draw(batch: int, length: int, width: int, gates: str) -> list[Tensor]:
    stream = torch.Generator("cuda").manual_seed(0)
    q, k, v = (
        torch.randn(batch, length, HEADS, width, device="cuda", dtype=torch.bfloat16, generator=stream)
        for _ in range(3)
    )
    log_f = torch.full((batch, length, HEADS), -1e-4, device="cuda")
    if gates == "mixed":
        time_H = torch.linspace(math.log(2), math.log(2048), HEADS, device="cuda").exp()
        bias_H = -torch.log(torch.expm1(1 / time_H))
        log_f = F.logsigmoid(bias_H + torch.randn(log_f.shape, device="cuda", generator=stream))
    return [x.requires_grad_() for x in (q, k, v, log_f)]


def check() -> None:
    """No timing of wrong results."""
    for gates in ("open", "mixed"):
        for width in (64, 128):
            inputs = draw(1, 1024, width, gates)
            scale = width**-0.5
            o = forgetting_attention(*inputs, scale=scale)
            exact = [x.detach().double().requires_grad_() for x in inputs]
            expected = attention_reference(*exact[:3], log_f_BNH=exact[3], scale=scale)
            do = torch.randn_like(o)
            got = (o, *torch.autograd.grad(o, inputs, do))
            wanted = (expected, *torch.autograd.grad(expected, exact, do.double()))
            for name, ours, theirs in zip(("o", "dq", "dk", "dv", "dlog_f"), got, wanted, strict=True):
                error = float((ours.double() - theirs).detach().norm() / theirs.detach().norm())
                assert error < 1e-2, (gates, width, name, error)


def sdpa(backend: SDPBackend) -> Run:
    def run(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor) -> Tensor:
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True)

    return run


def flex(length: int) -> Run:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, length, length)
    compiled = torch.compile(flex_attention, dynamic=False)

    def run(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor) -> Tensor:
        c = log_f.transpose(1, 2).contiguous().cumsum(2)
        o = compiled(
            *(x.transpose(1, 2) for x in (q, k, v)),
            score_mod=lambda s, b, h, i, j: s + c[b, h, i] - c[b, h, j],
            block_mask=mask,
        )
        assert isinstance(o, Tensor)
        return o

    return run


def flash_linear_attention() -> Run:
    from fla.ops.forgetting_attn import parallel_forgetting_attn

    return lambda q, k, v, log_f: parallel_forgetting_attn(q, k, v, log_f)


def contenders(length: int, width: int, others: bool) -> Iterator[tuple[str, str, bool, Callable[[], Run]]]:
    """Name, kind of gates, whether the gate has a gradient, how to make it."""
    scale = width**-0.5
    yield "softmax, flash (no gate)", "open", False, lambda: sdpa(SDPBackend.FLASH_ATTENTION)
    yield "softmax, cuDNN (no gate)", "open", False, lambda: sdpa(SDPBackend.CUDNN_ATTENTION)
    yield "ours, open gates", "open", True, lambda: lambda *x: forgetting_attention(*x, scale=scale)
    yield (
        "ours, mixed gates, all tiles",
        "mixed",
        True,
        lambda: lambda *x: forgetting_attention(*x, scale=scale, prune=False),
    )
    yield "ours, mixed gates", "mixed", True, lambda: lambda *x: forgetting_attention(*x, scale=scale)
    if others:
        yield "flash-linear-attention", "mixed", True, flash_linear_attention
        yield "FlexAttention with the gate", "mixed", True, lambda: flex(length)


def measure(run: Run, inputs: list[Tensor], gated: bool, quick: bool) -> str:
    rep = {"warmup": 20, "rep": 60} if quick else {"warmup": 50, "rep": 200}
    leaves = inputs if gated else inputs[:3]
    with torch.no_grad():
        forward = triton.testing.do_bench(lambda: run(*inputs), return_mode="median", **rep)
    do = torch.randn_like(run(*inputs))
    both = triton.testing.do_bench(lambda: torch.autograd.grad(run(*inputs), leaves, do), return_mode="median", **rep)
    return f"{forward:.2f} / {both:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--others", action="store_true", help="FlexAttention and flash-linear-attention too")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    given = parser.parse_args()
    check()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, Triton {triton.__version__}, plait {__version__}"
    )
    rows: dict[str, list[str]] = {}
    for length, width in SHAPES:
        for name, gates, gated, make in contenders(length, width, given.others):
            try:
                cell = measure(make(), draw(TOKENS // length, length, width, gates), gated, given.quick)
            except (ImportError, RuntimeError) as problem:
                cell = type(problem).__name__
            rows.setdefault(name, []).append(cell)
            print(length, width, name, cell, flush=True)
    print("| forward / forward+backward, ms |" + "".join(f" L {length} D {width} |" for length, width in SHAPES))
    print("|-|" + "-|" * len(SHAPES))
    for name, cells in rows.items():
        print(f"| {name} | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
