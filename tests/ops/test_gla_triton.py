"""The GPU's gated linear attention against the definition: on a GPU or in Triton's interpreter (TRITON_INTERPRET=1)."""

from __future__ import annotations

import pytest
import torch
from interpreted import DEVICE, needs_gpu, slow_if_interpreted
from torch import Tensor

from plait.ops.gla import gla, gla_kernels, gla_path, gla_reference

NAMES = ("q", "k", "v", "g", "state", "bonus")


def draw(
    T: int, *, B: int = 1, H: int = 2, G: int = 2, K: int = 8, V: int = 12, decays: str = "mixed",
    per_head: bool = False, bonus: bool = False,
) -> dict[str, Tensor]:  # fmt: skip
    stream = torch.Generator().manual_seed(1000 * T + K)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=stream)

    share = torch.rand(*((B, T, H) if per_head else (B, T, H, K)), generator=stream)
    g = {
        "mixed": -torch.exp(16.4 * share - 13.8),  # from 1e-6 to 13.8
        "weak": torch.full_like(share, -1e-6),
        "strong": torch.full_like(share, -13.8),
        "bursts": torch.where(share < 0.2, -13.8, -1e-2),  # weak decays behind strong ones
        "extreme": torch.where(share < 0.3, -1e9, 0.0),
    }[decays]
    inputs = {"q": normal(B, T, G, K), "k": normal(B, T, G, K), "v": normal(B, T, H, V), "g": g}
    inputs |= {"state": normal(B, H, K, V)} | ({"bonus": normal(H, K)} if bonus else {})
    return {name: x.to(DEVICE) for name, x in inputs.items()}


def results(op, inputs: dict[str, Tensor], dtype: torch.dtype) -> dict[str, Tensor]:
    """Output, final state and gradients, in `dtype` (decays, state and bonus never below fp32); brought to float64."""
    wide = torch.promote_types(dtype, torch.float32)
    leaves = {name: x.to(dtype if name in "qkv" else wide).requires_grad_() for name, x in inputs.items()}
    q, k, v, g = (leaves[name] for name in "qkvg")
    o, state = op(q, k, v, g, scale=0.3, state=leaves.get("state"), bonus=leaves.get("bonus"))
    stream = torch.Generator().manual_seed(7)
    weights = [torch.randn(x.shape, generator=stream).to(x) for x in (o, state)]
    loss = (o * weights[0]).sum() + (state * weights[1]).sum()
    grads = torch.autograd.grad(loss, list(leaves.values()))
    found = {"o": o, "final state": state} | {f"d{name}": x for name, x in zip(leaves, grads, strict=True)}
    return {name: x.detach().double() for name, x in found.items()}


def definition(q: Tensor, k: Tensor, v: Tensor, g: Tensor, **options) -> tuple[Tensor, Tensor]:
    q, k = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2) for x in (q, k))
    return gla_reference(q, k, v, g, **options)


def assert_equals_definition(inputs: dict[str, Tensor], tolerance: float, dtype: torch.dtype = torch.float32) -> None:
    inputs = {name: x.to(dtype).to(x.dtype) if name in "qkv" else x for name, x in inputs.items()}
    got, expected = results(gla_kernels, inputs, dtype), results(definition, inputs, torch.float64)
    for name, want in expected.items():
        error = float((got[name] - want).abs().max()) / max(float(want.abs().max()), 1e-30)
        assert error < tolerance, (name, error)


@pytest.mark.parametrize("kind", ["channel", "channel+bonus", "head"])
@pytest.mark.parametrize(
    ("T", "options"),
    [
        (1, {}),
        (17, {"K": 1, "V": 3}),
        (33, {"B": 2, "H": 1, "G": 1}),
        pytest.param(70, {"K": 24, "V": 40}, marks=slow_if_interpreted),  # widths that are no powers of two
        pytest.param(63, {"K": 12, "V": 24}, marks=slow_if_interpreted),
        pytest.param(40, {"K": 40, "V": 8}, marks=slow_if_interpreted),  # more than one tile of keys
    ],
    ids=str,
)
def test_equals_the_definition(T, options, kind):
    assert_equals_definition(draw(T, **options, per_head=kind == "head", bonus="bonus" in kind), 1e-5)


@pytest.mark.parametrize("kind", ["channel", "channel+bonus", "head"])
@pytest.mark.parametrize("decays", ["weak", "strong", "bursts", "extreme"])
def test_any_decay(decays, kind):
    assert_equals_definition(draw(45, H=1, G=1, decays=decays, per_head=kind == "head", bonus="bonus" in kind), 1e-5)


@pytest.mark.parametrize("bonus", [False, True])
@pytest.mark.parametrize("decays", ["weak", "mixed", "strong", "bursts", "extreme"])
@pytest.mark.parametrize(
    "shape",
    [
        {"K": 20, "H": 1, "G": 1},
        pytest.param({"K": 12, "V": 24}, marks=slow_if_interpreted),
        pytest.param({"K": 24, "V": 24, "B": 3}, marks=slow_if_interpreted),
    ],
    ids=str,
)
def test_blocks_connected_through_their_middle(shape, decays, bonus):
    """What half precision does, in fp32: as few levels as the decays allow."""
    from plait.ops.gla_triton import gla_backward, gla_forward

    inputs = draw(45, **shape, decays=decays, bonus=bonus)
    q, k, v, g, state = (inputs[name] for name in NAMES[:5])
    own = (q * k * inputs["bonus"]).sum(-1) if bonus else None
    leaves = {name: x.double().requires_grad_() for name, x in inputs.items()}
    o, final = gla_reference(*(leaves[name] for name in "qkvg"), state=leaves["state"], bonus=leaves.get("bonus"))
    do, dfinal = torch.randn_like(v), torch.randn_like(state)
    wanted = torch.autograd.grad((o * do).sum() + (final * dfinal).sum(), [leaves[name] for name in NAMES[:5]])
    found = list(gla_forward(q, k, v, g, own, state, 1.0, exact=False))
    dq, dk, dv, dg, down, dstate = gla_backward(do, dfinal, q, k, v, g, own, state, 1.0, exact=False)
    if bonus:
        dq, dk = dq + down[..., None] * inputs["bonus"] * k, dk + down[..., None] * inputs["bonus"] * q
    for ours, exact in zip((*found, dq, dk, dv, dg, dstate), (o.detach(), final.detach(), *wanted), strict=True):
        assert float((ours - exact).abs().max() / exact.abs().max()) < 1e-4


@pytest.mark.parametrize("G", [1, 2])
def test_heads_that_share_queries_and_keys(G):
    assert_equals_definition(draw(40, H=6, G=G, per_head=True), 1e-5)


def test_without_a_state_and_without_its_gradient():
    inputs = draw(20)
    del inputs["state"]
    leaves = [x.requires_grad_() for x in inputs.values()]
    o, _ = gla_kernels(*leaves)
    expected, _ = gla_reference(*(x.detach().double() for x in leaves))
    torch.testing.assert_close(o.double(), expected, rtol=1e-5, atol=1e-5)
    assert all(x.isfinite().all() for x in torch.autograd.grad(o.sum(), leaves))


def test_uninitialised_memory_is_never_read(monkeypatch):
    new_empty, empty_like = Tensor.new_empty, torch.empty_like

    def poisoned(x: Tensor) -> Tensor:
        return x.fill_(float("nan")) if x.is_floating_point() else x

    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **options: poisoned(new_empty(*args, **options)))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **options: poisoned(empty_like(*args, **options)))
    for options in ({"K": 20, "V": 20}, {"K": 12, "V": 24}, {"per_head": True, "H": 4}, {"bonus": True}):
        found = results(gla_kernels, draw(37, **options), torch.float32)
        assert all(x.isfinite().all() for x in found.values()), options


def test_slices_of_a_projection_need_no_copy():
    inputs = draw(20, K=8, V=8)
    qkv = torch.stack([inputs[name] for name in "qkv"], dim=2)
    for ours, alone in zip(
        gla_kernels(*qkv.unbind(2), inputs["g"]),
        gla_kernels(*(inputs[name] for name in "qkvg")),
        strict=True,
    ):
        assert torch.equal(ours, alone)


@pytest.mark.parametrize(
    ("K", "V"), [(12, 24), *(pytest.param(K, V, marks=slow_if_interpreted) for K, V in ((8, 12), (24, 24)))]
)
def test_stacked_members_are_more_sequences(K, V):
    cases = [draw(T, K=K, V=V, bonus=True) for T in (19, 19)]
    cases[1] = {name: 0.5 * x for name, x in cases[1].items()}
    stacked = {name: torch.stack([case[name] for case in cases]) for name in cases[0]}

    def loss(inputs: dict[str, Tensor]) -> Tensor:
        q, k, v, g = (inputs[name] for name in "qkvg")
        o, state = gla_kernels(q, k, v, g, state=inputs["state"], bonus=inputs["bonus"])
        return o.square().sum() + state.sum()

    together = torch.func.vmap(torch.func.grad(loss))(stacked)
    for index, case in enumerate(cases):
        for name, alone in torch.func.grad(loss)(case).items():
            torch.testing.assert_close(together[name][index], alone, rtol=1e-5, atol=1e-5)


def test_compiles_without_graph_breaks():
    inputs = draw(20)
    compiled = torch.compile(gla_kernels, backend="aot_eager", fullgraph=True)
    ours, alone = (results(op, inputs, torch.float32) for op in (compiled, gla_kernels))
    assert all(torch.equal(ours[name], alone[name]) for name in ours)


@needs_gpu
def test_gla_takes_the_kernels():
    inputs = draw(20)
    assert gla_path(inputs["q"], inputs["v"], inputs["g"]) == "triton"
    assert gla_path(inputs["q"].double(), inputs["v"].double(), inputs["g"].double()) == "chunks"
    with torch.autocast("cuda", torch.bfloat16):
        assert gla(*(inputs[name] for name in "qkvg"))[0].dtype == torch.bfloat16


@needs_gpu
@pytest.mark.slow
@pytest.mark.parametrize("decays", ["mixed", "weak", "strong", "bursts", "extreme"])
@pytest.mark.parametrize("kind", ["channel", "channel+bonus", "head"])
@pytest.mark.parametrize(("K", "V"), [(12, 24), (24, 24), (64, 64), (96, 192), (128, 128), (192, 384)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)], ids=["fp32", "bf16"])
def test_on_a_gpu(K, V, kind, decays, dtype, tolerance):
    inputs = draw(300, K=K, V=V, decays=decays, per_head=kind == "head", bonus="bonus" in kind)
    assert_equals_definition(inputs, tolerance, dtype)


@needs_gpu
def test_is_deterministic():
    inputs = draw(300, K=64, V=64)
    first, second = (results(gla_kernels, inputs, torch.bfloat16) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)
