"""The GPU's kernels against the CPU's ops: on a GPU, or in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, INTERPRETED, slow_if_interpreted

from plait.ops.attention import attention_reference
from plait.ops.scan import _Scan, _ScanAdjoint
from plait.ops.shortconv import _ShortConv, _ShortConvAdjoint, short_conv_reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("members", "batch", "tokens", "channels", "states", "L", "segments"),
    [(1, 2, 8, 5, 3, 8, 1), pytest.param(2, 3, 24, 70, 4, 8, 1, marks=slow_if_interpreted), (2, 1, 32, 5, 3, 8, 4),
     pytest.param(1, 2, 48, 70, 4, 8, 2, marks=slow_if_interpreted), (1, 2, 12, 70, 4, 4, 1), (1, 1, 32, 5, 12, 16, 2),
     (1, 1, 4, 5, 20, 2, 1)],
)  # fmt: skip
def test_kernels_equal_the_two_level_scan(members, batch, tokens, channels, states, L, segments, dtype, monkeypatch):
    """Chunks that fit into registers, and longer ones in several parts; `dtype` is that of u and y alone."""
    from plait.ops import scan_triton
    from plait.ops.scan_triton import scan_backward, scan_forward

    tile = scan_triton.tuning(states).forward
    programs = members * batch * -(-channels // tile.channels)
    monkeypatch.setattr(scan_triton, "ENOUGH", programs * segments)
    assert scan_triton._segments(members * batch, tokens // L, channels, tile) == segments
    stream = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=stream)

    u, delta = drawn(members, batch, tokens, channels).to(dtype).float(), drawn(members, batch, tokens, channels).exp()
    B, C = drawn(members, batch, tokens, states), drawn(members, batch, tokens, states)
    A, D = -drawn(members, states, channels).exp(), drawn(members, channels)
    state = drawn(members, batch, states, channels)
    grad_y, grad_final = drawn(*u.shape).to(dtype).float(), drawn(*state.shape)
    expected = _Scan.forward(u, delta, B, C, A, D, state, L)
    inputs = [x.to(DEVICE) for x in (u.to(dtype), delta, B, C, A, D)]
    rtol = {torch.float32: 1e-4, torch.float16: 2e-3}
    for ours, theirs in zip(scan_forward(*inputs, state.to(DEVICE), L), expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.to(ours.dtype), rtol=rtol[ours.dtype], atol=1e-5)
    wanted = _ScanAdjoint.forward(u, delta, B, C, A, D, expected[2], grad_y, grad_final, L)
    grads = scan_backward(*inputs, expected[2].to(DEVICE), grad_y.to(DEVICE, dtype), grad_final.to(DEVICE), L)
    assert [x.dtype for x in grads] == [dtype] + 6 * [torch.float32]
    for ours, theirs in zip(grads, wanted, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.to(ours.dtype), rtol=rtol[ours.dtype], atol=1e-4)


@pytest.mark.parametrize("run", ["members one by one", "stacked", "in a graph"])
def test_the_scan_operator_equals_the_two_level_scan(run):
    """Members of a fleet (vmap of grad), and a graph that must hold it as one node."""
    from plait.ops.scan_operator import scan_kernels

    stream = torch.Generator().manual_seed(0)
    shapes = [(2, 8, 5), (2, 8, 5), (2, 8, 3), (2, 8, 3), (3, 5), (5,), (2, 3, 5)]
    u, delta, B, C, A, D, state = (torch.randn(3, *shape, generator=stream).to(DEVICE) for shape in shapes)
    inputs = (u, delta.exp(), B, C, -A.exp(), D, state)

    def gradients(op):
        def loss(*member):
            y, final = op(*(x[None] for x in member), 4)[:2]
            return y.square().sum() + final.pow(3).sum()

        return torch.func.grad(loss, argnums=tuple(range(7)))

    wanted = [gradients(_Scan.apply)(*(x[m].cpu() for x in inputs)) for m in range(3)]
    if run == "stacked":
        found = zip(*torch.func.vmap(gradients(scan_kernels))(*inputs), strict=True)
    elif run == "members one by one":
        found = [gradients(scan_kernels)(*(x[m] for x in inputs)) for m in range(3)]
    else:
        leaves = [x[:1].clone().requires_grad_() for x in inputs]
        y, final = torch.compile(scan_kernels, backend="aot_eager", fullgraph=True)(*leaves, 4)
        grads = torch.autograd.grad(y.square().sum() + final.pow(3).sum(), leaves)
        found, wanted = [[x[0] for x in grads]], wanted[:1]
    for ours, theirs in zip(found, wanted, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("op", ["gla", "delta", "channel delta"])
def test_slices_of_a_batch_give_the_same_bits(op, monkeypatch):
    from plait.ops import stacking
    from plait.ops.channel_delta import channel_delta_kernels
    from plait.ops.delta import delta_kernels
    from plait.ops.gla import gla_kernels

    stream = torch.Generator().manual_seed(0)
    q, k, v, e, g = (torch.randn(3, 10, 1, 16, generator=stream).to(DEVICE) for _ in range(5))
    beta, g, first = q[..., 0].sigmoid(), -g.exp(), torch.ones(3, 1, 16, 16, device=DEVICE)
    ops = {
        "gla": lambda q, k, v: gla_kernels(q, k, v, g, scale=0.3),
        "delta": lambda q, k, v: delta_kernels(q, k, v, beta, g[..., 0], first, 0.3),
        "channel delta": lambda q, k, v: channel_delta_kernels(q, 0.2 * k, e, v, g, None, 0.3),
    }

    def results():
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        o, state = ops[op](*leaves)
        return [o, state, *torch.autograd.grad(o.square().sum() + state.sum(), leaves)]

    whole = results()
    monkeypatch.setattr(stacking, "MOST_PROGRAMS", 2)  # two sequences at a time
    assert all(torch.equal(a, b) for a, b in zip(whole, results(), strict=True))


@pytest.mark.parametrize(("tokens", "width"), [(1, 4), (2, 3), (33, 4), (70, 3)])
def test_short_convolution(tokens, width):
    from plait.ops.shortconv_triton import conv_backward, conv_forward

    stream = torch.Generator().manual_seed(0)
    members, batch, channels = 2, 3, 70
    x, state, weight, bias, grad_y = (
        torch.randn(*shape, generator=stream)
        for shape in (
            (members, batch, tokens, channels),
            (members, batch, width - 1, channels),
            (members, width, channels),
            (members, channels),
            (members, batch, tokens, channels),
        )
    )
    (expected,) = _ShortConv.forward(x, state, weight, bias)
    inputs = [t.to(DEVICE) for t in (x, weight, state, bias)]
    torch.testing.assert_close(conv_forward(*inputs, False).cpu(), expected, rtol=1e-4, atol=1e-5)
    dx, dstate, dweight, dbias = _ShortConvAdjoint.forward(x, state, weight, grad_y)
    for ours, theirs in zip(
        conv_backward(grad_y.to(DEVICE), *inputs, False), (dx, dweight, dstate, dbias), strict=True
    ):
        torch.testing.assert_close(ours.cpu(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("given", [(True, True), (False, True), (True, False), (False, False)])
@pytest.mark.parametrize(("tokens", "width"), [(1, 4), (3, 1), (70, 4)])
def test_short_convolution_with_its_activation(tokens, width, given):
    from plait.ops.shortconv import short_conv_kernels

    stream = torch.Generator().manual_seed(0)
    projected, weight, bias, state = (
        torch.randn(*shape, generator=stream, dtype=torch.float64)
        for shape in ((2, tokens, 30), (20, width), (20,), (2, width - 1, 20))
    )
    leaves = [weight, bias if given[0] else None, state if given[1] else None]

    def results(run, dtype):
        x = projected.to(DEVICE, dtype)[:, :, 4:24]  # a slice: its rows lie apart
        inputs = [x, *(None if leaf is None else leaf.to(DEVICE, dtype) for leaf in leaves)]
        inputs = [None if leaf is None else leaf.requires_grad_() for leaf in inputs]
        y = run(*inputs)
        return [y, *torch.autograd.grad(y.square().sum(), [leaf for leaf in inputs if leaf is not None])]

    got = results(lambda *a: short_conv_kernels(*a, silu=True), torch.float32)
    expected = results(
        lambda x, w, b, s: short_conv_reference(x, w, b, state_BHC=s, activation="silu")[0], torch.float64
    )
    for ours, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("tokens", "width", "causal"),
    [
        (7, 8, True),
        (64, 8, True),
        (128, 8, True),
        (150, 8, True),
        (150, 16, True),
        (150, 8, False),
        (130, 16, False),
        (320, 8, True),
    ],
)
@pytest.mark.parametrize(
    ("dtype", "near"), [(torch.float32, 1e-5), (torch.float16, 2e-3)] if INTERPRETED else [(torch.bfloat16, 2e-2)]
)
def test_narrow_attention(tokens, width, causal, dtype, near):
    """Widths of 8 leave room in their tiles for what is added to scores, those of 16 do not."""
    from plait.ops.narrow_attention_triton import narrow_backward, narrow_forward

    stream = torch.Generator().manual_seed(0)
    # Queries, keys and values as they come: side by side in one tensor.
    qkv = torch.randn(2, tokens, 6, width, generator=stream)
    grad_o = torch.randn(2, tokens, 2, width, generator=stream)
    inputs = [x.clone().requires_grad_() for x in qkv.split(2, dim=2)]
    expected = attention_reference(*inputs, causal=causal)
    wanted = torch.autograd.grad(expected, inputs, grad_o)
    q, k, v = qkv.to(DEVICE, dtype).split(2, dim=2)
    o, lse = narrow_forward(q, k, v, width**-0.5, causal)
    grads = narrow_backward(grad_o.to(DEVICE, dtype), q, k, v, o, lse, width**-0.5, causal)
    for ours, theirs in zip((o, *grads), (expected, *wanted), strict=True):
        gap = (ours.cpu().float() - theirs).norm() / theirs.norm()
        assert gap < near, gap


@pytest.mark.parametrize(("forward", "backward"), [((64, 128), (32, 128)), ((32, 16), (16, 64)), ((16, 64), (32, 32))])
@pytest.mark.parametrize(("tokens", "width", "causal"), [(128, 8, True), (150, 8, True), (150, 16, False)])
def test_narrow_attention_in_other_tiles(forward, backward, tokens, width, causal, monkeypatch):
    from plait.ops import narrow_attention_triton

    for name, (rows, columns) in (("FORWARD", forward), ("BACKWARD", backward)):
        tile = {**getattr(narrow_attention_triton, name), "ROWS": rows, "COLUMNS": columns}
        monkeypatch.setattr(narrow_attention_triton, name, tile)
    test_narrow_attention(tokens, width, causal, *((torch.float32, 1e-5) if INTERPRETED else (torch.bfloat16, 2e-2)))


@pytest.mark.parametrize(("rows", "width"), [(1, 1), (7, 5), (33, 700)])
def test_swiglu(rows, width):
    from plait.ops.elementwise import swiglu_reference
    from plait.ops.elementwise_triton import swiglu_backward, swiglu_forward

    x, dy = torch.randn(rows, 2 * width).requires_grad_(), torch.randn(rows, width)
    expected = swiglu_reference(x)
    given = x.detach().to(DEVICE)
    torch.testing.assert_close(swiglu_forward(given).cpu(), expected.detach(), rtol=1e-5, atol=1e-6)
    (wanted,) = torch.autograd.grad(expected, x, dy)
    torch.testing.assert_close(swiglu_backward(given, dy.to(DEVICE)).cpu(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("batch", "tokens", "heads", "groups", "width"),
    [(1, 1, 1, 1, 2), (2, 33, 6, 2, 12), (2, 5, 4, 4, 64), (1, 3, 20, 10, 64), (2, 7, 0, 3, 8)],
)
def test_split_with_rotation(batch, tokens, heads, groups, width):
    from plait.ops.elementwise import rotary_angles, rotate_reference
    from plait.ops.elementwise_triton import split_backward, split_forward

    packed = torch.randn(batch, tokens, heads + 2 * groups, width).requires_grad_()
    cos, sin = rotary_angles(torch.arange(tokens), width, 10000.0, torch.float32)
    q, k, v = packed.split([heads, groups, groups], dim=2)
    expected = (rotate_reference(q, cos, sin), rotate_reference(k, cos, sin), v)
    angles = (cos.flatten(1).to(DEVICE), sin.flatten(1).to(DEVICE))
    for ours, theirs in zip(split_forward(packed.detach().to(DEVICE), *angles, heads), expected, strict=True):
        torch.testing.assert_close(ours.cpu(), theirs.detach(), rtol=1e-5, atol=1e-5)
    grads = [torch.randn(batch, x.shape[2], tokens, width).transpose(1, 2) for x in expected]  # strides as attention's
    (wanted,) = torch.autograd.grad(expected, packed, grads)
    ours = split_backward(*(x.to(DEVICE) for x in grads), *angles)
    torch.testing.assert_close(ours.cpu(), wanted, rtol=1e-5, atol=1e-5)


def test_stacked_gradients_of_a_split_with_rotation_are_joined_by_the_kernel():
    """As a recorded graph has them: the models' gradients differ, their angles are the same."""
    from plait.ops.elementwise import rotary_angles, rotate_reference, split_rotated
    from plait.ops.paths import recorded_ops

    models, batch, tokens, heads, width = 3, 2, 5, 4, 6
    packed = torch.randn(models, batch, tokens, 3 * heads, width, device=DEVICE)
    weights = torch.randn(models, 3, batch, tokens, heads, width, device=DEVICE)
    cos, sin = (x.to(DEVICE) for x in rotary_angles(torch.arange(tokens), width, 10000.0, torch.float32))

    def ours(x):
        return split_rotated(x, cos.flatten(1), sin.flatten(1), heads)

    def definition(x):
        q, k, v = x.split(heads, dim=2)
        return rotate_reference(q, cos, sin), rotate_reference(k, cos, sin), v

    def gradient(split):
        def loss(x, weight):
            return sum((part.pow(2) * w).sum() for part, w in zip(split(x), weight, strict=True))

        with recorded_ops():
            return torch.func.vmap(torch.func.grad(loss))(packed, weights)

    torch.testing.assert_close(gradient(ours), gradient(definition), rtol=1e-5, atol=1e-5)
    with recorded_ops():  # angles are of fp32, heads of the projection's type
        assert [part.dtype for part in ours(packed[0].bfloat16())] == 3 * [torch.bfloat16]


@pytest.mark.parametrize(("rows", "vocab", "wide"), [(1, 1, 64), (9, 100, 128), (5, 5000, 5056)])
def test_cross_entropy_of_rows(rows, vocab, wide):
    from plait.ops.elementwise_triton import cross_entropy_rows

    logits = torch.randn(rows, vocab)
    targets = torch.randint(vocab, (rows,))
    targets[rows // 2 :: 3] = -100
    targets[0] = vocab - 1
    leaf = logits.clone().requires_grad_()
    expected = torch.nn.functional.cross_entropy(leaf, targets, ignore_index=-100, reduction="none")
    (wanted,) = torch.autograd.grad(expected.sum(), leaf)
    given, nll = torch.nn.functional.pad(logits, (0, wide - vocab)).to(DEVICE), torch.empty(rows, device=DEVICE)
    cross_entropy_rows(given, targets.to(DEVICE), nll, vocab, -100, True)
    torch.testing.assert_close(nll.cpu(), expected.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(given.cpu(), torch.nn.functional.pad(wanted, (0, wide - vocab)), rtol=1e-5, atol=1e-6)
