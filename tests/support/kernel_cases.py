"""Small inputs for every GPU kernel, each with its definition: odd lengths and widths, such that several chunks and
tiles are needed, the last of them not full."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
import torch.nn.functional as F
from interpreted import DEVICE, INTERPRETED
from torch import Tensor

from plait.ops.attention import attention_reference
from plait.ops.channel_delta import channel_delta_kernels
from plait.ops.delta import delta_kernels, delta_reference
from plait.ops.dplr import dplr_reference
from plait.ops.elementwise import fused_swiglu, rotary_angles, rotate_reference, split_rotated, swiglu_reference
from plait.ops.forgetting_attention import forgetting_attention
from plait.ops.gla import gla_kernels, gla_reference
from plait.ops.narrow_attention import narrow_attention, narrow_attention_at
from plait.ops.scan import selective_scan_reference
from plait.ops.scan_operator import scan_kernels
from plait.ops.shortconv import short_conv_kernels, short_conv_reference
from plait.ops.swiglu_mlp import swiglu_mlp, swiglu_mlp_reference

BF16, FP32, FP64 = torch.bfloat16, torch.float32, torch.float64
BOUNDS = {FP32: 1e-5, BF16: 1e-2}

Op = Callable[..., tuple[Tensor, ...]]


class Case(NamedTuple):
    """Two functions of the same inputs: kernels, and the definition, which is given them in float64. Without
    `gradients`, what they return is all there is."""

    ours: Op
    definition: Op
    inputs: dict[str, Tensor]
    gradients: bool = True
    fp32: float = BOUNDS[FP32]


def normal(*shape: int, dtype: torch.dtype = FP32) -> Tensor:
    return torch.randn(*shape).to(DEVICE, dtype)


def uniform(*shape: int) -> Tensor:
    return torch.rand(*shape).to(DEVICE)


def decays(*shape: int) -> Tensor:
    """Logarithms of decays from 1 − 1e-6 to 1e-6 per token."""
    return -torch.exp(16.4 * uniform(*shape) - 13.8)


def slices(*widths: int, rows: tuple[int, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """Of one projection, with a neighbour on either side."""
    return normal(*rows, 5 + sum(widths) + 3, dtype=dtype).split((5, *widths, 3), dim=-1)[1:-1]


def gated_linear_attention(dtype: torch.dtype) -> Iterator[Case]:
    T = 37 if dtype == FP32 else 69  # one chunk and five tokens
    for K, V, H, G, kind in ((40, 36, 1, 1, "channel"), (12, 70, 1, 1, "bonus"), (40, 36, 2, 1, "head")):
        q, k = slices(K, K, rows=(1, T, G), dtype=dtype)
        inputs = {"q": q, "k": k, "v": normal(1, T, H, V, dtype=dtype), "state": normal(1, H, K, V)}
        inputs["g"] = decays(1, T, H) if kind == "head" else decays(1, T, H, K)
        if kind == "bonus":
            inputs["bonus"] = normal(H, K)

        def ours(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Tensor) -> tuple[Tensor, Tensor]:
            return gla_kernels(q, k, v, g, scale=0.3, **options)

        def definition(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Tensor) -> tuple[Tensor, Tensor]:
            q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2) for x in (q, k))
            return gla_reference(q, k, v, g, scale=0.3, **options)

        yield Case(ours, definition, inputs)


def delta_rule(dtype: torch.dtype) -> Iterator[Case]:
    T = 37 if dtype == FP32 else 69
    for B, K, V, gated in ((1, 70, 20, True), (2, 24, 40, False)):
        q, k, v = slices(K, K, V, rows=(B, T, 1), dtype=dtype)
        inputs = {"q": q, "k": F.normalize(k, dim=-1), "v": v, "state": normal(B, 1, K, V)}
        inputs["beta"] = 2 * uniform(B, T, 1)
        if gated:
            inputs["g"] = decays(B, T, 1)

        def ours(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, g: Tensor | None = None) -> tuple:
            return delta_kernels(q, k, v, beta, g, state, 0.5)

        def definition(q: Tensor, k: Tensor, v: Tensor, beta: Tensor, state: Tensor, g: Tensor | None = None) -> tuple:
            return delta_reference(q, k, v, beta, g, scale=0.5, state=state)

        yield Case(ours, definition, inputs)


def delta_rule_with_a_decay_per_channel(dtype: torch.dtype) -> Iterator[Case]:
    T, K, V = 37 if dtype == FP32 else 69, 70, 20
    key = F.normalize(normal(1, T, 1, K), dim=-1)
    q, k, e, v = normal(1, T, 1, K), 2 * uniform(1, T, 1, 1) * key, key * uniform(1, T, 1, K), normal(1, T, 1, V)
    inputs = {name: x.to(dtype) for name, x in {"q": q, "k": k, "e": e, "v": v}.items()}
    inputs |= {"g": decays(1, T, 1, K), "state": normal(1, 1, K, V)}

    def ours(q: Tensor, k: Tensor, e: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return channel_delta_kernels(q, k, e, v, g, state, 0.5)

    def definition(q: Tensor, k: Tensor, e: Tensor, v: Tensor, g: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        return dplr_reference(q, k, v, g.exp() * e, -k, g, scale=0.5, state=state)

    # Only bf16 takes these kernels: the gradient of g is a difference of sums, which fp32 would miss.
    yield Case(ours, definition, inputs, fp32=1e-4)


def forgetting(dtype: torch.dtype) -> Iterator[Case]:
    shapes = ((70, 133, 24, -0.01, 0.3, 9), (133, 133, 16, -0.7, 4.0, 0), (67, 67, 8, -9.0, 1.0, 0))
    for M, N, D, gate, size, pad in shapes:
        q, k, v = (size * normal(1, T, heads, D, dtype=dtype) for T, heads in ((M, 2), (N, 1), (N, 1)))
        inputs = {"q": q, "k": k, "v": v, "log_f": gate * uniform(1, N, 2)}
        pad_B = torch.tensor([pad], device=DEVICE) if pad else None

        def ours(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, pad_B: Tensor | None = pad_B) -> tuple[Tensor]:
            return (forgetting_attention(q, k, v, log_f, pad_B, scale=0.25),)

        def definition(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor, pad_B: Tensor | None = pad_B) -> tuple[Tensor]:
            return (attention_reference(q, k, v, log_f_BNH=log_f, pad_B=pad_B, scale=0.25),)

        yield Case(ours, definition, inputs)


def attention_of_narrow_heads(dtype: torch.dtype) -> Iterator[Case]:
    if dtype == FP32 and not INTERPRETED:
        return  # only half precision takes these kernels; a GPU rounds the factors of their products
    for T, D, causal in ((70, 8, True), (64, 16, True), (133, 8, False)):
        q, k, v = normal(1, T, 6, D, dtype=dtype).split(2, dim=2)

        def ours(q: Tensor, k: Tensor, v: Tensor, causal: bool = causal) -> tuple[Tensor]:
            return (narrow_attention(q, k, v, 0.25, causal),)

        def definition(q: Tensor, k: Tensor, v: Tensor, causal: bool = causal) -> tuple[Tensor]:
            return (attention_reference(q, k, v, scale=0.25, causal=causal),)

        yield Case(ours, definition, {"q": q, "k": k, "v": v})


def attention_of_few_queries(dtype: torch.dtype) -> Iterator[Case]:
    if dtype == FP32 and not INTERPRETED:
        return
    # One query that sees the first key alone, one that sees all, more keys than a tile; a tile exactly full. Heads that
    # share a program, in pairs and fours, and those that do not: too many queries, an odd number of heads.
    for T, H, D, at in (
        (133, 4, 8, (0, 3, 70, 132)), (70, 4, 4, (1, 69)), (70, 2, 8, tuple(range(1, 70, 2))), (70, 3, 8, (5, 60)),
        (64, 2, 16, (63,) * 16), (70, 2, 24, tuple(range(1, 70, 2))),
    ):  # fmt: skip
        q, k, v = (normal(2, tokens, H, D, dtype=dtype) for tokens in (len(at), T, T))
        at_BM = torch.tensor([at, [min(T - 1, position + 1) for position in at]], device=DEVICE)

        def ours(q: Tensor, k: Tensor, v: Tensor, at_BM: Tensor = at_BM) -> tuple[Tensor]:
            return (narrow_attention_at(q, k, v, at_BM, 0.25),)

        def definition(q: Tensor, k: Tensor, v: Tensor, at_BM: Tensor = at_BM) -> tuple[Tensor]:
            return (attention_reference(q, k, v, scale=0.25, at_BM=at_BM),)

        yield Case(ours, definition, {"q": q, "k": k, "v": v})


def selective_scan(dtype: torch.dtype) -> Iterator[Case]:
    # Two segments of a chunk in two parts; one segment of three chunks, with more states.
    for T, L, E, N in ((16, 8, 133, 3), (6, 2, 67, 20)):
        inputs = {"u": normal(2, T, E, dtype=dtype), "delta": normal(2, T, E).exp(), "A": -normal(E, N).exp()}
        inputs |= {"D": normal(E), "B": normal(2, T, N), "C": normal(2, T, N), "state": normal(2, E, N)}

        def ours(
            u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor, L: int = L
        ) -> tuple[Tensor, Tensor]:
            y, final = scan_kernels(*(x[None] for x in (u, delta, B, C, A.mT, D, state.mT)), L)
            return y[0], final[0].mT

        def definition(u: Tensor, delta: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, state: Tensor) -> tuple:
            return selective_scan_reference(u, delta, A, B, C, D, state_BEN=state)

        yield Case(ours, definition, inputs)


def short_convolution(dtype: torch.dtype) -> Iterator[Case]:
    for T, W, whole in ((67, 4, True), (3, 2, False)):
        (x,) = slices(70, rows=(2, T), dtype=dtype)
        inputs = {"x": x, "weight": normal(70, W)}
        if whole:
            inputs |= {"bias": normal(70), "state": normal(2, W - 1, 70, dtype=dtype)}

        def ours(
            x: Tensor, weight: Tensor, bias: Tensor | None = None, state: Tensor | None = None, whole: bool = whole
        ) -> tuple[Tensor]:
            return (short_conv_kernels(x, weight, bias, state, silu=whole),)

        def definition(
            x: Tensor, weight: Tensor, bias: Tensor | None = None, state: Tensor | None = None, whole: bool = whole
        ) -> tuple[Tensor]:
            activation = "silu" if whole else None
            return (short_conv_reference(x, weight, bias, state_BHC=state, activation=activation)[0],)

        yield Case(ours, definition, inputs)


def elementwise(dtype: torch.dtype) -> Iterator[Case]:
    x = normal(3, 2 * 1029, dtype=dtype)
    yield Case(lambda x: (fused_swiglu(x),), lambda x: (swiglu_reference(x),), {"x": x})
    T, H, G, P = 3, 30, 2, 64
    cos, sin = (x.to(DEVICE) for x in rotary_angles(torch.arange(T), P, 10000.0, FP64))

    def ours(packed: Tensor) -> tuple[Tensor, ...]:
        return split_rotated(packed, cos.flatten(1).float(), sin.flatten(1).float(), H)

    def definition(packed: Tensor) -> tuple[Tensor, ...]:
        q, k, v = packed.split([H, G, G], dim=2)
        return rotate_reference(q, cos, sin), rotate_reference(k, cos, sin), v

    yield Case(ours, definition, {"packed": normal(2, T, H + 2 * G, P, dtype=dtype)})


def whole_swiglu(dtype: torch.dtype) -> Iterator[Case]:
    if dtype == FP32 and not INTERPRETED:
        return  # only half precision takes these kernels; a GPU rounds the factors of their products
    for N, D, W in ((133, 24, 80), (128, 16, 64)):
        inputs = {"x": normal(N, D, dtype=dtype), "gate_up": normal(2 * W, D, dtype=dtype) / D**0.5}
        inputs["down"] = normal(D, W, dtype=dtype) / W**0.5
        yield Case(
            lambda x, gate_up, down: (swiglu_mlp(x, gate_up, down),),
            lambda x, gate_up, down: (swiglu_mlp_reference(x, gate_up, down),),
            inputs,
        )


def cross_entropy(dtype: torch.dtype) -> Iterator[Case]:
    from plait.ops.elementwise_triton import cross_entropy_rows

    vocab, wide = 4099, 4160
    targets = torch.tensor([vocab - 1, 7, -100, 0], device=DEVICE)

    def ours(logits: Tensor) -> tuple[Tensor, Tensor]:
        gradient, nll = F.pad(logits, (0, wide - vocab), value=math.nan), torch.empty(4, device=DEVICE)
        cross_entropy_rows(gradient, targets, nll, vocab, -100, True)
        alone = torch.empty(4, device=DEVICE)
        cross_entropy_rows(F.pad(logits, (0, wide - vocab), value=math.nan), targets, alone, vocab, -100, False)
        return nll, alone, gradient

    def definition(logits: Tensor) -> tuple[Tensor, Tensor]:
        leaf = logits.clone().requires_grad_()
        nll = F.cross_entropy(leaf, targets, ignore_index=-100, reduction="none")
        (gradient,) = torch.autograd.grad(nll.sum(), leaf)
        return nll.detach(), nll.detach(), F.pad(gradient, (0, wide - vocab))

    yield Case(ours, definition, {"logits": normal(4, vocab, dtype=dtype)}, gradients=False)


def one_token(dtype: torch.dtype) -> Iterator[Case]:
    from plait.ops.step_triton import conv_step_kernel, gla_step_kernel

    H, G, K, V = 4, 2, 12, 40
    for kind in ("channel", "bonus", "head"):
        q, k = slices(K, K, rows=(2, G), dtype=dtype)
        inputs = {"q": q, "k": k, "v": normal(2, H, V, dtype=dtype), "state": normal(2, H, K, V)}
        inputs["g"] = decays(2, H) if kind == "head" else decays(2, H, K)
        if kind == "bonus":
            inputs["bonus"] = normal(H, K)

        def step(
            q: Tensor, k: Tensor, v: Tensor, g: Tensor, state: Tensor, bonus: Tensor | None = None
        ) -> tuple[Tensor, Tensor]:
            return gla_step_kernel(q, k, v, g, state, 0.3, bonus)

        def recurrence(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options: Tensor) -> tuple[Tensor, Tensor]:
            q, k = (x.repeat_interleave(H // G, dim=1) for x in (q, k))
            o, state = gla_reference(*(x[:, None] for x in (q, k, v, g)), scale=0.3, **options)
            return o[:, 0], state

        yield Case(step, recurrence, inputs, gradients=False)
    (x,) = slices(261, rows=(2,), dtype=dtype)
    inputs = {"x": x, "weight": normal(261, 4), "bias": normal(261), "state": normal(2, 3, 261, dtype=dtype)}

    def convolved(x: Tensor, weight: Tensor, bias: Tensor, state: Tensor) -> tuple[Tensor, Tensor]:
        y, past = short_conv_reference(x[:, None], weight, bias, state_BHC=state, activation="silu")
        return y[:, 0], past

    yield Case(
        lambda x, weight, bias, state: conv_step_kernel(x, weight, bias, state, silu=True),
        convolved,
        inputs,
        gradients=False,
    )


#: Files of `plait.ops` with kernels → the cases that run them.
CASES: dict[tuple[str, ...], Callable[[torch.dtype], Iterator[Case]]] = {
    ("gla_forward_triton", "gla_backward_triton"): gated_linear_attention,
    ("delta_forward_triton", "delta_backward_triton"): delta_rule,
    ("channel_delta_kernels_triton",): delta_rule_with_a_decay_per_channel,
    ("forgetting_forward_triton", "forgetting_backward_triton", "forgetting_sharp_triton"): forgetting,
    ("narrow_attention_triton",): attention_of_narrow_heads,
    ("few_queries_triton",): attention_of_few_queries,
    ("scan_triton",): selective_scan,
    ("shortconv_triton",): short_convolution,
    ("elementwise_triton",): lambda dtype: itertools.chain(elementwise(dtype), cross_entropy(dtype)),
    ("swiglu_mlp_triton",): whole_swiglu,
    ("step_triton",): one_token,
}


def results(op: Op, inputs: dict[str, Tensor], gradients: bool) -> dict[str, Tensor]:
    """Outputs, and gradients of one fixed random weighting of them; in float64."""
    leaves = {name: x.detach().requires_grad_(gradients) for name, x in inputs.items()}
    outputs = op(**leaves)
    found = {f"output {index}": x for index, x in enumerate(outputs)}
    if gradients:
        stream = torch.Generator().manual_seed(7)
        weights = [torch.randint(-8, 9, x.shape, generator=stream).to(x) / 8 for x in outputs]  # exact in bf16
        loss = sum((x * weight).sum() for x, weight in zip(outputs, weights, strict=True))
        grads = torch.autograd.grad(loss, list(leaves.values()))
        found |= {f"d{name}": grad for name, grad in zip(leaves, grads, strict=True)}
    return {name: x.detach().double() for name, x in found.items()}
