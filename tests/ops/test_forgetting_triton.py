"""The GPU's forgetting attention against the definition: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from interpreted import DEVICE, needs_gpu
from torch import Tensor

from plait.ops import forgetting_attention as module
from plait.ops.attention import attention, attention_path, attention_reference
from plait.ops.forgetting_attention import forgetting_attention


def draw(
    M: int, N: int, *, B: int = 1, H: int = 2, G: int = 2, D: int = 16, gates: str = "mixed", size: float = 1.0,
    dtype: torch.dtype = torch.float32,
) -> list[Tensor]:  # fmt: skip
    """q, k, v (entries of this size) and log f."""
    stream = torch.Generator().manual_seed(1000 * M + N)
    q, k, v = (size * torch.randn(B, T, heads, D, generator=stream) for T, heads in ((M, H), (N, G), (N, G)))
    exponent = torch.empty(B, N, H).uniform_(-6.0, math.log10(30.0), generator=stream)
    log_f = {
        "mixed": -(10.0**exponent),
        "half": torch.full_like(exponent, -0.7),
        "open": -1e-6 * exponent.abs(),
        "closed": torch.full_like(exponent, -30.0),
    }[gates]
    return [*(x.to(DEVICE, dtype) for x in (q, k, v)), log_f.to(DEVICE)]


def output_and_gradients(run: Any, inputs: list[Tensor], dtype: torch.dtype) -> list[Tensor]:
    """In `dtype`, the gate never below fp32; brought to float64."""
    leaves = [x.to(dtype).requires_grad_() for x in inputs[:3]]
    leaves.append(inputs[3].to(torch.promote_types(dtype, torch.float32)).requires_grad_())
    o = run(*leaves)
    weights = torch.randn(o.shape, generator=torch.Generator().manual_seed(7)).to(o)
    return [x.detach().double() for x in (o, *torch.autograd.grad((o * weights).sum(), leaves))]


def assert_equals_definition(
    inputs: list[Tensor], tolerance: float, pad: list[int] | None = None, scale: float = 0.3
) -> None:
    pad_B = None if pad is None else torch.tensor(pad, device=DEVICE)
    got = output_and_gradients(lambda *x: forgetting_attention(*x, pad_B, scale=scale), inputs, inputs[0].dtype)
    expected = output_and_gradients(
        lambda q, k, v, f: attention_reference(q, k, v, log_f_BNH=f, pad_B=pad_B, scale=scale), inputs, torch.float64
    )
    for name, ours, theirs in zip(("o", "dq", "dk", "dv", "dlog_f"), got, expected, strict=True):
        error = float((ours - theirs).abs().max()) / max(1.0, float(theirs.abs().max()))
        assert error < tolerance, (name, error)


@pytest.mark.parametrize(
    ("M", "N", "options"),
    [
        (1, 1, {}),
        (2, 2, {}),
        (63, 63, {}),
        (65, 65, {"D": 24}),  # a width that is no power of two
        (130, 130, {"gates": "half"}),
        (257, 257, {"H": 1, "G": 1}),
        (7, 150, {}),  # a few last queries of many keys
        (70, 130, {"H": 4}),  # pairs of heads share their keys
    ],
    ids=str,
)
def test_equals_the_definition(M, N, options):
    assert_equals_definition(draw(M, N, **options), 1e-5)


@pytest.mark.parametrize("gates", ["open", "half", "mixed", "closed"])
@pytest.mark.parametrize("size", [0.3, 4.0])  # one offset for a block; a running maximum
def test_extreme_gates(gates, size):
    assert_equals_definition(draw(160, 160, H=1, G=1, gates=gates, size=size), 1e-5 if size < 1 else 4e-5)


@pytest.mark.parametrize(("M", "N"), [(130, 130), (65, 130), (33, 97)])
@pytest.mark.parametrize(
    ("dtype", "gate", "tolerance"),
    [
        (torch.float32, -13.8, 1e-5),
        (torch.bfloat16, -13.8, 1e-2),
        (torch.float16, -6.0, 1.5e-3),  # what fp16 itself can hold
    ],
    ids=str,
)
def test_behind_closed_gates_every_gradient_keeps_its_digits(M, N, dtype, gate, tolerance):
    """A query sees little but its own key: gradients of q, k and gates are a thousandth of v's and less, and each is
    held to its own size."""
    inputs = draw(M, N, H=1, G=1, dtype=dtype)
    inputs[3].fill_(gate)
    got = output_and_gradients(lambda *x: forgetting_attention(*x, scale=0.25), inputs, dtype)
    expected = output_and_gradients(
        lambda q, k, v, f: attention_reference(q, k, v, log_f_BNH=f, scale=0.25), inputs, torch.float64
    )
    for name, ours, theirs in zip(("o", "dq", "dk", "dv", "dlog_f"), got, expected, strict=True):
        assert float((ours - theirs).abs().max() / theirs.abs().max()) < tolerance, name


def test_padding():
    """Rows of the batch: some padding, only the last token, nothing to see at all."""
    inputs = draw(100, 100, B=3, H=1, G=1)
    assert_equals_definition(inputs, 1e-5, pad=[70, 99, 100])
    assert_equals_definition([inputs[0][:, -20:], *inputs[1:]], 1e-5, pad=[3, 90, 100])


@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.bfloat16, 2e-2), (torch.float16, 4e-3)],
    ids=str,
)
@pytest.mark.parametrize("size", [0.3, 3.0])
def test_half_precision(dtype, tolerance, size):
    assert_equals_definition(draw(130, 130, H=1, G=1, gates="half", size=size, dtype=dtype), tolerance)


def run_forward(inputs: list[Tensor], prune: bool) -> tuple[Tensor, Tensor]:
    """o, and the first key that every tile of queries visits."""
    outputs = module._forgetting(*inputs, None, 0.25, prune)
    return outputs[0], outputs[6]


def test_forgotten_tiles_are_skipped_without_a_trace():
    inputs = draw(320, 320, H=1, G=1, gates="half")
    pruned, begins = run_forward(inputs, prune=True)
    whole, all_keys = run_forward(inputs, prune=False)
    assert int(begins[0, 0, -1]) >= 128
    assert int(all_keys.max()) == 0
    torch.testing.assert_close(pruned, whole, rtol=0, atol=1e-7)
    # A gate above 1 brings old keys back: for the queries after it nothing may be skipped.
    inputs[3][:, 250] = 400.0
    assert int(run_forward(inputs, prune=True)[1][0, 0, 250 // 64 :].max()) == 0
    assert_equals_definition(inputs, 1e-4)  # scores of 600 have four digits behind the point in fp32


def test_strided_inputs():
    """Slices of one fused projection, without copies."""
    q, k, v, log_f = draw(40, 40, H=2)
    fused = torch.cat((q, k, v), dim=2)
    torch.testing.assert_close(
        forgetting_attention(*fused.split(2, dim=2), log_f, scale=0.3), forgetting_attention(q, k, v, log_f, scale=0.3)
    )


def test_members_under_vmap():
    members = [draw(33, 33, B=2), draw(33, 33, B=2, size=2.0, gates="half")]

    def loss(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor) -> Tensor:
        return forgetting_attention(q, k, v, log_f, scale=0.3).square().sum()

    gradients = torch.func.grad(loss, argnums=(0, 1, 2, 3))
    stacked = torch.func.vmap(gradients)(*(torch.stack(x) for x in zip(*members, strict=True)))
    for e, member in enumerate(members):
        torch.testing.assert_close(tuple(x[e] for x in stacked), gradients(*member))


def test_operators_are_registered_soundly():
    q, k, v, log_f = draw(9, 12, G=1)
    inputs = (q, k, v, log_f, torch.tensor([3], device=DEVICE), 0.3, True)
    checks = ("test_schema", "test_faketensor")
    torch.library.opcheck(module._forgetting, inputs, test_utils=checks)
    o, *saved = module._forgetting(*inputs)
    torch.library.opcheck(module._forgetting_backward, (o, o, q, k, v, *saved, inputs[4], 0.3), test_utils=checks)


@needs_gpu
@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"slopes_H": [0.5, 0.1]}, "forgetting"),
        ({"slopes_H": [0.5, 0.1], "pad_B": [3]}, "forgetting"),
        ({"pad_B": [3]}, "forgetting"),
        ({"window": 5}, "tiled"),
        ({"causal": False, "pad_B": [3]}, "tiled"),
    ],
    ids=str,
)
def test_attention_takes_it_on_a_gpu(options, path):
    options = {n: torch.tensor(x, device=DEVICE) if isinstance(x, list) else x for n, x in options.items()}
    q, k, v, log_f = draw(70, 70)
    for gate in (None, log_f):
        assert attention_path(q, k, log_f_BNH=gate, **options) == path
        torch.testing.assert_close(
            attention(q, k, v, log_f_BNH=gate, **options).double(),
            attention_reference(q.double(), k.double(), v.double(), log_f_BNH=gate, **options),
            rtol=0, atol=1e-5,
        )  # fmt: skip
    assert attention_path(q.double(), k.double(), log_f_BNH=log_f) == "tiled"


@needs_gpu
def test_one_graph_when_compiled():
    inputs = [x.requires_grad_() for x in draw(600, 600, D=32, dtype=torch.bfloat16)]

    def loss(q: Tensor, k: Tensor, v: Tensor, log_f: Tensor) -> Tensor:
        return attention(q, k, v, log_f_BNH=log_f).float().square().sum()

    eager = torch.autograd.grad(loss(*inputs), inputs)
    compiled = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*inputs), inputs)
    torch.testing.assert_close(compiled, eager, rtol=1e-2, atol=1e-2)
