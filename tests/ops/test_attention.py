from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.ops import gpu
from plait.ops import tiled_attention as module
from plait.ops.attention import alibi_slopes, attention, attention_path, attention_reference


def draw(
    M: int, N: int, *, B: int = 3, H: int = 4, G: int = 4, D: int = 8, dtype: torch.dtype = torch.float64
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """q, k, v and log f, the gates spread from nearly 1 to nearly 0."""
    generator = torch.Generator().manual_seed(M * 1000 + N)
    q, k, v = (torch.randn(B, T, heads, D, generator=generator) for T, heads in ((M, H), (N, G), (N, G)))
    log_f = torch.nn.functional.logsigmoid(3 * torch.randn(B, N, H, generator=generator))
    return q.to(dtype), k.to(dtype), v.to(dtype), log_f.to(dtype)


def output_and_gradients(run: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, **options: Any) -> list[Tensor]:
    inputs = [x.clone().requires_grad_() for x in (q, k, v)]
    if "log_f_BNH" in options:
        options["log_f_BNH"] = options["log_f_BNH"].clone().requires_grad_()
        inputs.append(options["log_f_BNH"])
    o = run(*inputs[:3], **options)
    weights = torch.randn(o.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64).to(o.dtype)
    return [o.detach(), *torch.autograd.grad((o * weights).sum(), inputs)]


def assert_same(got: list[Tensor], expected: list[Tensor], atol: float) -> None:
    for name, a, b in zip(("o", "dq", "dk", "dv", "dlog_f"), got, expected, strict=False):
        torch.testing.assert_close(
            a.double(), b.double(), atol=atol, rtol=0, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert len(got) == len(expected)


LENGTHS = [(1, 1), (2, 2), (63, 63), (64, 64), (65, 65), (257, 257), (1, 65), (5, 64), (70, 257)]


@pytest.mark.parametrize(("M", "N"), LENGTHS)
@pytest.mark.parametrize("bias", ["none", "gate", "alibi", "both"])
@pytest.mark.parametrize("causal", [True, False])
def test_fast_equals_reference(M: int, N: int, bias: str, causal: bool) -> None:
    q, k, v, log_f = draw(M, N, G=2)
    biases: dict[str, Any] = {}
    if bias in ("gate", "both"):
        biases["log_f_BNH"] = log_f
    if bias in ("alibi", "both"):
        biases["slopes_H"] = torch.tensor(alibi_slopes(4))
    # Batch rows: no padding, some, all of it but the last token, everything (a sequence that sees nothing).
    pad_B = torch.tensor([0, N // 2, N])
    for options in ({}, {"window": 1}, {"window": 9}, {"pad_B": pad_B}, {"window": 9, "pad_B": pad_B}):
        options = {**options, **biases, "causal": causal, "scale": 0.3}
        got = output_and_gradients(attention, q, k, v, **options)
        assert_same(got, output_and_gradients(attention_reference, q, k, v, **options), atol=1e-10)


def test_reference_against_the_definition_in_loops() -> None:
    """The reference itself, pair by pair, with every option on."""
    M, N, window, slopes = 3, 7, 4, [0.5, 0.25, 0.1, 0.0]
    q, k, v, log_f = draw(M, N, G=2)
    pad = [0, 2, 6]
    o = attention_reference(q, k, v, log_f_BNH=log_f, slopes_H=slopes, window=window, pad_B=torch.tensor(pad))
    for b in range(3):
        for i in range(M):
            for h in range(4):
                position = N - M + i
                seen = [j for j in range(N) if j <= position and position - j < window and j >= pad[b]]
                weights = [
                    math.exp(
                        float(q[b, i, h] @ k[b, j, h // 2]) / math.sqrt(8)
                        + float(log_f[b, j + 1 : position + 1, h].sum())
                        - slopes[h] * (position - j)
                    )
                    for j in seen
                ]
                expected = sum(
                    (w * v[b, j, h // 2] for w, j in zip(weights, seen, strict=True)), torch.zeros(8).double()
                )
                torch.testing.assert_close(o[b, i, h], expected / max(sum(weights), 1e-300))


def test_rows_that_see_nothing_give_zero_and_no_gradient() -> None:
    q, k, v, log_f = draw(6, 6, B=1)
    for run in (attention, attention_reference):
        o, dq, dk, dv, dlog_f = output_and_gradients(run, q, k, v, log_f_BNH=log_f, pad_B=torch.tensor([4]))
        for x in (o, dq, dk, dv, dlog_f):
            assert torch.all(x[:, :4] == 0)
        assert torch.all(o[:, 4:] != 0)


def test_open_gate_is_softmax_and_constant_gate_is_alibi() -> None:
    q, k, v, log_f = draw(65, 65)
    torch.testing.assert_close(attention(q, k, v, log_f_BNH=torch.zeros_like(log_f)), attention(q, k, v))
    slopes = torch.tensor([0.5, 0.01, 2.0, 0.0], dtype=torch.float64)
    constant = (-slopes).expand_as(log_f)
    torch.testing.assert_close(attention(q, k, v, log_f_BNH=constant), attention(q, k, v, slopes_H=slopes))


@pytest.mark.parametrize("options", [{}, {"causal": False}, {"window": 3}, {"pad_B": torch.tensor([0, 2, 5])}], ids=str)
def test_gradcheck(options: dict[str, Any]) -> None:
    inputs = [x.requires_grad_() for x in draw(4, 5, H=2, G=1, D=3)]
    assert torch.autograd.gradcheck(lambda q, k, v, f: attention(q, k, v, log_f_BNH=f, **options), inputs)


def test_gate_gradient_by_the_published_formulas() -> None:
    """ds = p∘(dp−δ), dc_i = Σ_j ds_ij − Σ_m ds_mi, dlog f_t = Σ_{s≥t} dc_s, without autograd."""
    q, k, v, log_f = draw(33, 33)
    _, _, _, _, got = output_and_gradients(attention, q, k, v, log_f_BNH=log_f)
    do = torch.randn(q.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64)
    c = log_f.cumsum(1).transpose(1, 2)
    s = torch.einsum("bmhd,bnhd->bhmn", q, k) / math.sqrt(8) + c[..., None] - c[..., None, :]
    p = s.masked_fill(torch.ones(33, 33).triu(1).bool(), -math.inf).softmax(-1)
    dp = torch.einsum("bmhd,bnhd->bhmn", do, v)
    ds = p * (dp - (p * dp).sum(-1, keepdim=True))
    dc = (ds.sum(3) - ds.sum(2)).transpose(1, 2)
    torch.testing.assert_close(got, dc.flip(1).cumsum(1).flip(1))


@pytest.mark.parametrize("gates", ["half", "mixed", "open"])
def test_long_sequences_keep_their_precision(gates: str) -> None:
    """fp32 against float64 where the running sum c reaches −1e4 and a careless difference would keep three digits."""
    T = 2048
    q, k, v, _ = draw(T, T, B=1, H=2, G=2, D=16, dtype=torch.float32)
    generator = torch.Generator().manual_seed(0)
    exponent = torch.empty(1, T, 2).uniform_(-6.0, math.log10(14.0), generator=generator)
    log_f = {"half": torch.full((1, T, 2), -0.7), "mixed": -(10.0**exponent), "open": -1e-6 * exponent.exp()}[gates]
    got = output_and_gradients(attention, q, k, v, log_f_BNH=log_f)
    expected = output_and_gradients(attention_reference, *(x.double() for x in (q, k, v)), log_f_BNH=log_f.double())
    assert_same(got[:4], expected[:4], atol=1e-5)
    # dlog f_t adds up all pairs that straddle t: compared on its own scale.
    torch.testing.assert_close(
        got[4].double() / expected[4].abs().max(), expected[4] / expected[4].abs().max(), atol=1e-5, rtol=0
    )


def test_forgotten_keys_are_skipped_without_a_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k, v, _ = draw(600, 600, B=2, dtype=torch.float32)
    log_f = torch.full((2, 600, 4), -0.7)
    tiles = list(module._tiles(q, k, log_f.double().cumsum(1), 8**-0.5, True, 0))
    assert max(tile.keys.start for tile in tiles) > 400
    skipping = output_and_gradients(attention, q, k, v, log_f_BNH=log_f)
    monkeypatch.setattr(module, "_forgotten_at", lambda *_: math.inf)
    assert_same(skipping, output_and_gradients(attention, q, k, v, log_f_BNH=log_f), atol=2e-6)
    monkeypatch.undo()
    # One head that remembers keeps the keys for all; a gate above 1 makes "forgotten" meaningless.
    log_f[..., 0] = 0
    assert all(tile.keys.start == 0 for tile in module._tiles(q, k, log_f.double().cumsum(1), 8**-0.5, True, 0))
    log_f[:] = -0.7
    log_f[:, 300] = 100.0
    assert all(tile.keys.start == 0 for tile in module._tiles(q, k, log_f.double().cumsum(1), 8**-0.5, True, 0))


def test_window_cost_is_linear() -> None:
    q, k, _, _ = draw(1000, 1000, B=1)
    for causal in (True, False):
        assert max(t.keys.stop - t.keys.start for t in module._tiles(q, k, None, 1.0, causal, 50)) <= 128 + 2 * 49


@pytest.mark.parametrize("gated", [True, False])
def test_members_under_vmap(gated: bool) -> None:
    members = [draw(33, 33, B=2, D=4, G=2) for _ in range(3)]
    stacked = [
        torch.stack(x) * torch.tensor([1.0, 0.5, 2.0]).double().view(3, 1, 1, 1, 1)
        for x in list(zip(*members, strict=True))[:3]
    ]
    log_f = torch.stack([m[3] * (i + 1) for i, m in enumerate(members)])

    def loss(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor) -> Tensor:
        return attention(q, k, v, log_f_BNH=log_f if gated else None, pad_B=torch.tensor([0, 3])).square().sum()

    step = torch.func.grad_and_value(loss, argnums=(0, 1, 2, 3) if gated else (0, 1, 2))
    gradients, values = torch.func.vmap(step)(*stacked, log_f)
    for e in range(3):
        alone, value = step(*(x[e] for x in stacked), log_f[e])
        torch.testing.assert_close(values[e], value)
        torch.testing.assert_close(tuple(g[e] for g in gradients), alone)
    # A tensor all members share (in_dims None) takes part too.
    shared = torch.func.vmap(lambda q: attention(q, stacked[1][0], stacked[2][0], log_f_BNH=log_f[0]))(stacked[0])
    torch.testing.assert_close(shared[2], attention(stacked[0][2], stacked[1][0], stacked[2][0], log_f_BNH=log_f[0]))


def test_operators_are_registered_soundly() -> None:
    """Schema, fake tensors: what torch.compile and export rely on."""
    q, k, v, log_f = draw(9, 12, G=2)
    checks = ("test_schema", "test_faketensor")
    for c in (None, log_f.double().cumsum(1)):
        inputs = (q, k, v, c, torch.tensor([0, 3, 12]), 0.3, True, 5)
        torch.library.opcheck(module._tiled_operator, inputs, test_utils=checks)
        torch.library.opcheck(module._tiled_backward_operator, (q, q, *inputs), test_utils=checks)


def test_second_derivatives_are_refused() -> None:
    q, k, v, log_f = (x.requires_grad_() for x in draw(5, 5))
    (gradient,) = torch.autograd.grad(attention(q, k, v, log_f_BNH=log_f).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError):
        torch.autograd.grad(gradient.sum(), q)


def test_the_stated_path_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []
    fused, tiled = torch.nn.functional.scaled_dot_product_attention, module._TiledAttention.apply
    monkeypatch.setattr(
        torch.nn.functional, "scaled_dot_product_attention", lambda *a, **kw: (ran.append("sdpa"), fused(*a, **kw))[1]
    )
    monkeypatch.setattr(module._TiledAttention, "apply", lambda *a: (ran.append("tiled"), tiled(*a))[1])
    expected = []
    for M, N, D, options in [
        (128, 128, 8, {}),  # the narrow heads of small probes
        (128, 128, 64, {}),
        (600, 600, 16, {}),
        (1, 300, 8, {"window": 20, "pad_B": torch.tensor([1])}),
        (2, 200, 64, {}),  # fused attention would put its diagonal elsewhere
        (2, 300, 64, {"causal": False, "window": 300}),
        (64, 64, 64, {"window": 3}),
    ]:
        q, k, v, _ = draw(M, N, B=1, D=D)
        expected.append(attention_path(q, k, **options))
        torch.testing.assert_close(attention(q, k, v, **options), attention_reference(q, k, v, **options))
    assert ran == expected
    assert ran == ["tiled", "sdpa", "sdpa", "sdpa", "tiled", "tiled", "tiled"]


@pytest.mark.parametrize(
    ("tokens", "width", "compiling", "path"),
    [(256, 16, True, "narrow"), (512, 16, True, "sdpa"), (256, 32, True, "sdpa"), (512, 32, False, "narrow")],
)
def test_narrow_heads_of_short_sequences_take_our_kernels_in_a_graph_too(
    monkeypatch: pytest.MonkeyPatch, tokens: int, width: int, compiling: bool, path: str
) -> None:
    monkeypatch.setattr(torch.compiler, "is_compiling", lambda: compiling)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda gpu: (8, 0))
    monkeypatch.setattr(gpu, "_has_triton", lambda: True)
    drawn = SimpleNamespace(
        shape=(8, tokens, 4, width), is_cuda=True, device=torch.device("cuda"), dtype=torch.bfloat16
    )
    on_gpu = cast("Tensor", drawn)
    assert attention_path(on_gpu, on_gpu) == path


def test_half_precision_runs_in_fp32_and_returns_half() -> None:
    q, k, v, log_f = draw(40, 40)
    o = attention(q.half(), k.half(), v.half(), log_f_BNH=log_f.half())
    assert o.dtype == torch.float16
    torch.testing.assert_close(o.double(), attention(q, k, v, log_f_BNH=log_f), atol=1e-2, rtol=0)


def test_alibi_slopes_of_the_paper() -> None:
    assert alibi_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert alibi_slopes(1) == [2.0**-8]
    twelve = alibi_slopes(12)
    assert twelve[:8] == alibi_slopes(8)
    assert twelve[8:] == alibi_slopes(16)[0:8:2]
    with pytest.raises(UserError, match="at least one head"):
        alibi_slopes(0)


def test_mistakes_are_named() -> None:
    q, k, v, _ = draw(4, 4, G=4)
    with pytest.raises(UserError, match="4 query heads cannot share 3"):
        attention(q, k[:, :, :3], v[:, :, :3])
    with pytest.raises(UserError, match="4 queries but only 2 keys"):
        attention(q, k[:, :2], v[:, :2])
    with pytest.raises(UserError, match="window"):
        attention(q, k, v, window=-1)


def test_against_flash_linear_attention(fla_naive: Callable[[str], ModuleType]) -> None:
    naive = fla_naive("forgetting_attn/naive.py").naive_forgetting_attn
    q, k, v, log_f = draw(65, 65, G=2, dtype=torch.float32)
    for window in (0, 9):
        got = output_and_gradients(attention, q, k, v, log_f_BNH=log_f, window=window)
        expected = output_and_gradients(
            lambda q, k, v, log_f_BNH, window=window: naive(q, k, v, log_f_BNH, window_size=window or None),
            q, k, v, log_f_BNH=log_f,
        )  # fmt: skip
        assert_same(got, expected, atol=2e-5)
