"""Our kernels compared with those of other libraries for the same op: each is checked for correctness, then timed.

An op's shapes are those of a 125M model. Outputs and gradients are compared with the definition, one token at a time in
float64, on a short sequence; kernels with larger errors than the dtype's rounding allows are not timed. Peers are the
libraries that can be imported: flash-linear-attention's kernels on a GPU.

Letters: B batch, T time, H heads, G heads of queries and keys, K key width, V value width.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from plait.core.registry import require_known
from plait.ops.attention import attention, attention_at, attention_reference
from plait.ops.channel_delta import channel_delta
from plait.ops.delta import delta, delta_reference
from plait.ops.dplr import dplr_reference
from plait.ops.gla import gla, gla_reference
from plait.ops.paths import took
from plait.ops.scan import selective_scan, selective_scan_reference
from plait.ops.shortconv import short_conv, short_conv_reference
from plait.ops.swiglu_mlp import swiglu_mlp, swiglu_mlp_reference, swiglu_path

Inputs = dict[str, Tensor]
Run = Callable[[Inputs], Tensor]

#: Largest error of a correct result, relative to the largest value of the same tensor.
TOLERANCES = {torch.bfloat16: 1e-2, torch.float16: 1e-2, torch.float32: 1e-5, torch.float64: 1e-9}
CHECKED_LENGTH = 200  # tokens; not a multiple of a chunk


@dataclass(frozen=True)
class KernelCase:
    """An op at one shape: how to draw its inputs (those in `wide`, such as decays, are never below fp32), our
    implementation, the definition, and the peers. A peer is imported when its function is called, which raises
    ImportError if it is not installed."""

    name: str
    shape: str
    draw: Callable[[int, int, torch.Generator], Inputs]  # batch, length, stream
    ours: Run
    definition: Run
    peers: Mapping[str, Callable[[], Run]]
    wide: tuple[str, ...] = ("g", "bonus", "beta")
    exact_when_long: Run | None = None  # the definition for float64 and long sequences; None: ours in its plain form
    narrow: Mapping[int, KernelCase] = field(default_factory=dict)  # the same op with heads or models of other widths


@dataclass(frozen=True)
class KernelTiming:
    """`error`: the largest of outputs and gradients. `ratio`: this one's time forward and backward over ours. Times and
    peak memory (above the inputs) are given only for correct results; `note` says why a peer has none."""

    op: str
    shape: str
    kernel: str
    right: bool
    error: float
    forward_ms: float | None = None
    both_ms: float | None = None
    peak_mib: float | None = None
    ratio: float | None = None
    note: str = ""


def _normal(stream: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=stream, device=stream.device)


def gla_case(name: str, H: int, G: int, K: int, V: int, *, per_head: bool, bonus: bool = False) -> KernelCase:
    def draw(B: int, T: int, stream: torch.Generator) -> Inputs:
        normal = partial(_normal, stream)
        # Decays as in models: heads or channels with horizons from a few tokens to a few thousand.
        centre = torch.linspace(0.5, 8.0, H if per_head else K, device=stream.device)
        g = F.logsigmoid(centre + normal(B, T, H, *(() if per_head else (K,))))
        inputs = {"q": normal(B, T, G, K), "k": normal(B, T, G, K), "v": normal(B, T, H, V), "g": g}
        return inputs | ({"bonus": normal(H, K)} if bonus else {})

    scale = K**-0.5

    def ours(x: Inputs) -> Tensor:
        return gla(x["q"], x["k"], x["v"], x["g"], scale=scale, bonus=x.get("bonus"))[0]

    def definition(x: Inputs) -> Tensor:
        q, k = (x[name].repeat_interleave(H // G, dim=2) for name in "qk")
        return gla_reference(q, k, x["v"], x["g"], scale=scale, bonus=x.get("bonus"))[0]

    def peer() -> Run:
        if bonus:
            op = import_module("fla.ops.rwkv6").chunk_rwkv6
            return lambda x: op(x["q"], x["k"], x["v"], x["g"], x["bonus"], scale=scale)[0]
        op = (
            import_module("fla.ops.simple_gla").chunk_simple_gla if per_head else import_module("fla.ops.gla").chunk_gla
        )

        def run(x: Inputs) -> Tensor:
            q, k = (x[name] if G == H else x[name].repeat_interleave(H // G, dim=2) for name in "qk")
            o: Tensor = op(q, k, x["v"], x["g"], scale=scale)[0]
            return o

        return run

    named = "chunk_rwkv6" if bonus else "chunk_simple_gla" if per_head else "chunk_gla"
    shape = f"H {H}{f' G {G}' if G != H else ''} K {K} V {V}"
    return KernelCase(name, shape, draw, ours, definition, {f"fla {named}": peer})


def scan_case(name: str, E: int, N: int) -> KernelCase:
    """Letters: E channels, N state per channel."""
    order = ("u", "delta", "A", "B", "C", "D")

    def draw(B: int, T: int, stream: torch.Generator) -> Inputs:
        normal = partial(_normal, stream)
        A_EN = -torch.arange(1.0, N + 1, device=stream.device).repeat(E, 1)
        delta = F.softplus(normal(B, T, E) - 4)  # steps around a model's initial ones, 0.001 to 0.1
        return dict(
            zip(order, (normal(B, T, E), delta, A_EN, normal(B, T, N), normal(B, T, N), normal(E)), strict=True)
        )

    def peer() -> Run:
        op = import_module("mamba_ssm.ops.selective_scan_interface").selective_scan_fn

        def run(x: Inputs) -> Tensor:
            u, delta, B, C = (x[name].transpose(1, 2).contiguous() for name in ("u", "delta", "B", "C"))
            y: Tensor = op(u, delta, x["A"], B, C, x["D"])
            return y.transpose(1, 2)

        return run

    return KernelCase(
        name,
        f"E {E} N {N}, all but u in fp32",
        draw,
        lambda x: selective_scan(*(x[name] for name in order))[0],
        lambda x: selective_scan_reference(*(x[name] for name in order))[0],
        {"mamba_ssm selective_scan": peer},
        wide=order[1:],
    )


def delta_case(name: str, H: int, K: int, V: int, *, decay: str = "none") -> KernelCase:
    """`decay`: none, head or channel. Keys have length 1, write strengths reach 1."""

    def draw(B: int, T: int, stream: torch.Generator) -> Inputs:
        normal = partial(_normal, stream)
        q, k = (F.normalize(normal(B, T, H, K), dim=-1) for _ in range(2))
        inputs = {"q": q, "k": k, "v": normal(B, T, H, V), "beta": normal(B, T, H).sigmoid()}
        if decay == "none":
            return inputs
        centre = torch.linspace(0.5, 8.0, H if decay == "head" else K, device=stream.device)
        return inputs | {"g": F.logsigmoid(centre + normal(B, T, H, *((K,) if decay == "channel" else ())))}

    scale = K**-0.5

    def ours(x: Inputs) -> Tensor:
        if decay == "channel":
            return channel_delta(x["q"], _written(x), x["k"], x["v"], x["g"], scale=scale)[0]
        return delta(x["q"], x["k"], x["v"], x["beta"], x.get("g"), scale=scale)[0]

    def definition(x: Inputs) -> Tensor:
        if decay == "channel":
            written, read = _written(x), x["g"].exp() * x["k"]
            return dplr_reference(x["q"], written, x["v"], read, -written, x["g"], scale=scale)[0]
        return delta_reference(x["q"], x["k"], x["v"], x["beta"], x.get("g"), scale=scale)[0]

    def peer() -> Run:
        if decay == "none":
            op = import_module("fla.ops.delta_rule").chunk_delta_rule
            return lambda x: op(x["q"], x["k"], x["v"], x["beta"].to(x["q"].dtype), scale=scale)[0]
        if decay == "head":
            op = import_module("fla.ops.gated_delta_rule").chunk_gated_delta_rule
        else:
            op = import_module("fla.ops.kda").chunk_kda
        return lambda x: op(x["q"], x["k"], x["v"], x["g"], x["beta"], scale=scale)[0]

    named = {"none": "chunk_delta_rule", "head": "chunk_gated_delta_rule", "channel": "chunk_kda"}[decay]
    return KernelCase(name, f"H {H} K {K} V {V}", draw, ours, definition, {f"fla {named}": peer})


def attention_case(name: str, H: int, D: int, *, gates: bool = False) -> KernelCase:
    """Softmax attention, or forgetting attention: `g` is the logarithm of the forget gates."""

    def draw(B: int, T: int, stream: torch.Generator) -> Inputs:
        normal = partial(_normal, stream)
        inputs = {"q": normal(B, T, H, D), "k": normal(B, T, H, D), "v": normal(B, T, H, D)}
        centre = torch.linspace(0.5, 8.0, H, device=stream.device)
        return inputs | ({"g": F.logsigmoid(centre + normal(B, T, H))} if gates else {})

    def ours(x: Inputs) -> Tensor:
        return attention(x["q"], x["k"], x["v"], log_f_BNH=x.get("g"))

    def definition(x: Inputs) -> Tensor:
        return attention_reference(x["q"], x["k"], x["v"], log_f_BNH=x.get("g"))

    def forgetting() -> Run:
        op = import_module("fla.ops.forgetting_attn").parallel_forgetting_attn
        return lambda x: op(x["q"], x["k"], x["v"], x["g"])

    def torchs() -> Run:
        def run(x: Inputs) -> Tensor:
            q, k, v = (x[name].transpose(1, 2) for name in "qkv")
            return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

        return run

    peers = {"fla parallel_forgetting_attn": forgetting} if gates else {"torch's choice": torchs}
    # In float64 `attention` uses tiles in plain torch: the definition itself would materialise all scores.
    shape = f"H {H} D {D}"
    return KernelCase(name, shape, draw, ours, definition, peers, exact_when_long=ours)


def few_queries_case(name: str, H: int, D: int, N: int) -> KernelCase:
    """Softmax attention of N queries at some positions only: the first, the last, and others evenly spaced between."""

    def draw(B: int, T: int, stream: torch.Generator) -> Inputs:
        normal = partial(_normal, stream)
        return {"q": normal(B, min(T, N), H, D), "k": normal(B, T, H, D), "v": normal(B, T, H, D)}

    def positions(x: Inputs) -> Tensor:
        (B, queries), T = x["q"].shape[:2], x["k"].shape[1]
        return torch.linspace(0, T - 1, queries, device=x["q"].device).long().expand(B, -1)

    def ours(x: Inputs) -> Tensor:
        return attention_at(x["q"], x["k"], x["v"], positions(x))

    def definition(x: Inputs) -> Tensor:
        return attention_reference(x["q"], x["k"], x["v"], at_BM=positions(x))

    return KernelCase(name, f"H {H} D {D}, {N} queries", draw, ours, definition, {}, exact_when_long=definition)


def conv_case(name: str, C: int, W: int = 4, *, silu: bool = True) -> KernelCase:
    """A short convolution of C channels that continues from a state. Letters: W taps."""

    def draw(B: int, T: int, stream: torch.Generator) -> Inputs:
        normal = partial(_normal, stream)
        return {"x": normal(B, T, C), "weight": 0.5 * normal(C, W), "bias": normal(C), "state": normal(B, W - 1, C)}

    def run(op: Callable[..., tuple[Tensor, Tensor]]) -> Run:
        activation = "silu" if silu else None
        return lambda x: op(x["x"], x["weight"], x["bias"], state_BHC=x["state"], activation=activation)[0]

    shape = f"C {C}, {W} taps"
    return KernelCase(name, shape, draw, run(short_conv), run(short_conv_reference), {}, wide=("weight", "bias"))


def swiglu_case(name: str, D: int, W: int) -> KernelCase:
    """A whole SwiGLU. Letters: D width, W inner width."""
    order = ("x", "gate_up", "down")

    def draw(B: int, T: int, stream: torch.Generator) -> Inputs:
        normal = partial(_normal, stream)
        return dict(zip(order, (normal(B, T, D), normal(2 * W, D) / D**0.5, normal(D, W) / W**0.5), strict=True))

    def definition(x: Inputs) -> Tensor:
        return swiglu_mlp_reference(*(x[name] for name in order))

    def ours(x: Inputs) -> Tensor:
        fused = took("swiglu", swiglu_path(x["x"], x["down"])) == "triton"
        return swiglu_mlp(*(x[name] for name in order)) if fused else definition(x)

    return KernelCase(name, f"D {D} W {W}", draw, ours, definition, {}, wide=())


def _written(x: Inputs) -> Tensor:
    return x["beta"][..., None].to(x["k"].dtype) * x["k"]


#: Widths of heads, or states per channel, of small models. Below 16 kernels pad: tiles of a GPU's matrix units are at
#: least 16 wide. Each width is compiled separately: 12 and 24 fill their tiles only partly, and are not multiples of
#: 16, which the compiler would otherwise exploit.
NARROW = (8, 12, 16, 24, 32, 64)


def _with_narrow_heads(case: KernelCase, make: Callable[[int], KernelCase]) -> KernelCase:
    return replace(case, narrow={width: make(width) for width in NARROW})


CASES: dict[str, KernelCase] = {
    case.name: case
    for case in (
        _with_narrow_heads(
            gla_case("gla", 4, 4, 96, 192, per_head=False), lambda w: gla_case("gla", 4, 4, w, w, per_head=False)
        ),
        _with_narrow_heads(
            gla_case("hgrn2", 6, 6, 128, 128, per_head=False), lambda w: gla_case("hgrn2", 4, 4, w, w, per_head=False)
        ),
        _with_narrow_heads(
            gla_case("rwkv6", 12, 12, 64, 64, per_head=False, bonus=True),
            lambda w: gla_case("rwkv6", 4, 4, w, w, per_head=False, bonus=True),
        ),
        _with_narrow_heads(
            gla_case("mamba2", 24, 1, 128, 64, per_head=True), lambda w: gla_case("mamba2", 4, 1, w, w, per_head=True)
        ),
        _with_narrow_heads(
            gla_case("retnet", 4, 4, 192, 384, per_head=True), lambda w: gla_case("retnet", 4, 4, w, w, per_head=True)
        ),
        _with_narrow_heads(delta_case("deltanet", 6, 128, 128), lambda w: delta_case("deltanet", 4, w, w)),
        _with_narrow_heads(
            delta_case("gated-deltanet", 6, 128, 128, decay="head"),
            lambda w: delta_case("gated-deltanet", 4, w, w, decay="head"),
        ),
        _with_narrow_heads(
            delta_case("kda", 6, 128, 128, decay="channel"), lambda w: delta_case("kda", 4, w, w, decay="channel")
        ),
        _with_narrow_heads(scan_case("mamba", 1536, 16), lambda w: scan_case("mamba", 40, w)),
        _with_narrow_heads(attention_case("attn", 12, 64), lambda w: attention_case("attn", 4, w)),
        _with_narrow_heads(
            attention_case("fox", 12, 64, gates=True), lambda w: attention_case("fox", 4, w, gates=True)
        ),
        _with_narrow_heads(few_queries_case("attn-few", 16, 8, 16), lambda w: few_queries_case("attn-few", 4, w, 40)),
        _with_narrow_heads(conv_case("short-conv", 1792), lambda w: conv_case("short-conv", w)),
        # Only narrow models use these kernels; 72 and 176 fill their tiles only partly.
        replace(swiglu_case("swiglu", 128, 512), narrow={72: swiglu_case("swiglu", 72, 176)}),
    )
}


def cases(names: tuple[str, ...]) -> list[KernelCase]:
    """The cases with these names; all of them if none is named."""
    for name in names:
        require_known(name, CASES, "unknown op")
    return [CASES[name] for name in names or CASES]


def bench_case(
    case: KernelCase, *, batch: int, seq_len: int, device: torch.device, dtype: torch.dtype, repeats: int
) -> Iterator[KernelTiming]:
    """Ours first, then each peer that can be imported here."""
    kernels: dict[str, Callable[[], Run]] = {"plait": lambda: case.ours}
    kernels |= peers_of(case, device)
    ours_ms: float | None = None
    for name, make in kernels.items():
        try:
            run = make()
        except ImportError:
            continue
        try:
            error = largest_error(case, run, min(seq_len, CHECKED_LENGTH), device, dtype)
        except Exception as refused:
            if name == "plait":
                raise
            yield KernelTiming(case.name, case.shape, name, False, float("inf"), note=str(refused).split("\n")[0])
            continue
        right = error <= TOLERANCES[dtype]
        if not right:
            yield KernelTiming(case.name, case.shape, name, right, error)
            continue
        forward_ms, both_ms, peak = _timed(case, run, batch, seq_len, device, dtype, repeats)
        ours_ms = both_ms if name == "plait" else ours_ms
        ratio = None if ours_ms is None else both_ms / ours_ms
        yield KernelTiming(case.name, case.shape, name, right, error, forward_ms, both_ms, peak, ratio)


def peers_of(case: KernelCase, device: torch.device) -> Mapping[str, Callable[[], Run]]:
    """The peers to compare with: all of them on a GPU, none on a CPU, where they have no kernels."""
    return {} if device.type == "cpu" else case.peers


def largest_error(case: KernelCase, run: Run, length: int, device: torch.device, dtype: torch.dtype) -> float:
    """The largest error of the output and of all input gradients, each relative to the largest value of the same
    tensor."""
    drawn = {name: x.detach() for name, x in _drawn(case, 1, length, device, dtype).items()}
    computed, wanted = ([*_output_and_gradients(op, drawn, to)] for op, to in ((run, dtype), (case.definition, None)))
    gaps = [
        float((ours.double() - exact).abs().max() / exact.abs().max().clamp(min=1e-30))
        for ours, exact in zip(computed, wanted, strict=True)
    ]
    return max(gap if gap == gap else float("inf") for gap in gaps)


def _drawn(case: KernelCase, batch: int, length: int, device: torch.device, dtype: torch.dtype) -> Inputs:
    drawn = case.draw(batch, length, torch.Generator(device).manual_seed(0))
    wide = torch.promote_types(dtype, torch.float32)
    return {name: x.to(wide if name in case.wide else dtype).requires_grad_() for name, x in drawn.items()}


def _output_and_gradients(run: Run, drawn: Inputs, dtype: torch.dtype | None) -> Iterator[Tensor]:
    """Output and gradients for the inputs as drawn or, without a dtype, in float64."""
    leaves = {name: (x.double() if dtype is None else x.clone()).requires_grad_() for name, x in drawn.items()}
    o = run(leaves)
    weights = torch.randn(o.shape, generator=torch.Generator().manual_seed(1)).to(o)
    yield o.detach()
    yield from torch.autograd.grad((o * weights).sum(), list(leaves.values()))


def _timed(
    case: KernelCase, run: Run, batch: int, seq_len: int, device: torch.device, dtype: torch.dtype, repeats: int
) -> tuple[float, float, float | None]:
    """Median milliseconds of the forward pass and of both passes; on a GPU also peak memory above the inputs in MiB."""
    inputs = _drawn(case, batch, seq_len, device, dtype)
    leaves = list(inputs.values())
    with torch.no_grad():
        forward_ms = median_ms(lambda: run(inputs), device, repeats)
    do = torch.randn_like(run(inputs))
    both_ms = median_ms(lambda: torch.autograd.grad(run(inputs), leaves, do), device, repeats)
    if device.type != "cuda":
        return forward_ms, both_ms, None
    torch.cuda.reset_peak_memory_stats(device)
    held = torch.cuda.memory_allocated(device)
    torch.autograd.grad(run(inputs), leaves, do)
    return forward_ms, both_ms, (torch.cuda.max_memory_allocated(device) - held) / 2**20


def median_ms(call: Callable[[], Any], device: torch.device, repeats: int) -> float:
    """Median time of a call, after three warm-up calls. On a GPU it is measured by events, with a cold cache as in
    training."""
    for _ in range(3):
        call()
    if device.type != "cuda":
        taken = []
        for _ in range(repeats):
            start = time.perf_counter()
            call()
            taken.append(1e3 * (time.perf_counter() - start))
        return sorted(taken)[len(taken) // 2]
    flushed = torch.empty(2**28, dtype=torch.uint8, device=device)  # larger than any cache
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    for start_event, end_event in events:
        flushed.zero_()
        start_event.record()
        call()
        end_event.record()
    torch.cuda.synchronize(device)
    return sorted(float(a.elapsed_time(b)) for a, b in events)[repeats // 2]
