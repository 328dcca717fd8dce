"""Proxies by their definitions: finite differences for those made of gradients, limits for the others."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor

from plait.algorithms.proxies import (
    PROXIES,
    ShortTraining,
    Windows,
    agreement,
    block_weights,
    correlation_score,
    cross_entropy,
    load_proxy,
)
from plait.core.errors import UserError
from plait.mixers.table import names
from plait.model.language_model import Model, build

TOKENS = np.random.default_rng(0).integers(0, 20, 400)
TINY = "d=8 vocab=20 | attn[heads=2] mlp[inner=6,act=silu]"


def tiny(text: str = TINY, seed: int = 0) -> Model:
    """In double precision and with weights large enough to matter."""
    return build(f"init=0.3 {text}", seed=seed, dtype=torch.float64)


@pytest.fixture
def data() -> Windows:
    return Windows(TOKENS, batch=3, seq=5)


def loss_gradient(model: Model, data: Windows, weight: Tensor, step: float = 1e-6) -> Tensor:
    """∂L/∂weight by central differences, one number at a time."""
    found = torch.zeros_like(weight)
    with torch.no_grad():
        for at in np.ndindex(*weight.shape):
            was = weight[at].item()
            sides = []
            for sign in (1, -1):
                weight[at] = was + sign * step
                sides.append(cross_entropy(model, *data(0)).item())
            weight[at] = was
            found[at] = (sides[0] - sides[1]) / (2 * step)
    return found


def test_snip_and_grad_norm_by_finite_differences(data: Windows) -> None:
    model = tiny()
    weights = block_weights(model)
    assert sum(weight.numel() for weight in weights) == 4 * 64 + 2 * 48
    grads = [loss_gradient(model, data, weight) for weight in weights]
    snip = sum(float((weight.detach() * grad).abs().sum()) for weight, grad in zip(weights, grads, strict=True))
    norm = sum(float(grad.norm()) for grad in grads)
    assert load_proxy("snip").score(model, data) == pytest.approx(snip, rel=1e-6)
    assert load_proxy("grad_norm").score(model, data) == pytest.approx(norm, rel=1e-6)


def test_grasp_by_finite_differences(data: Windows) -> None:
    model = tiny()
    weights = block_weights(model)

    def gradient() -> list[Tensor]:
        return list(torch.autograd.grad(cross_entropy(model, *data(0)), weights))

    along, step = gradient(), 1e-5
    sides = []
    for sign in (1, -1):  # H g is how the gradient changes along g
        with torch.no_grad():
            for weight, g in zip(weights, along, strict=True):
                weight += sign * step * g
        sides.append(gradient())
        with torch.no_grad():
            for weight, g in zip(weights, along, strict=True):
                weight -= sign * step * g
    curved = [(plus - minus) / (2 * step) for plus, minus in zip(*sides, strict=True)]
    wanted = -sum(float((weight.detach() * c).sum()) for weight, c in zip(weights, curved, strict=True))
    assert abs(wanted) > 1e-3
    assert load_proxy("grasp").score(model, data) == pytest.approx(wanted, rel=1e-5)


def scaled(channel: int, row: int, factor: float) -> Callable[[object, object, Tensor], Tensor]:
    """A hook that scales one channel of one sequence."""

    def hook(_module: object, _inputs: object, output: Tensor) -> Tensor:
        factors = torch.ones_like(output)
        factors[row, :, channel] = factor
        return output * factors

    return hook


def test_fisher_by_scaling_each_channel(data: Windows) -> None:
    """Σ_t a ∂L/∂a is how the loss changes when a sequence's channel is scaled."""
    model, step = tiny(), 1e-5
    total = 0.0
    for block in model.backbone.blocks:
        for channel in range(8):
            changes = []
            for row in range(3):
                sides = []
                for factor in (1 + step, 1 - step):
                    hook = block.mixer.register_forward_hook(scaled(channel, row, factor))
                    sides.append(cross_entropy(model, *data(0)).item())
                    hook.remove()
                changes.append((sides[0] - sides[1]) / (2 * step))
            total += 0.5 * float(np.mean(np.square(changes)))
    assert load_proxy("fisher").score(model, data) == pytest.approx(total, rel=1e-5)


def scaled_layer(model: Model, place: int, channel: int, row: int, factor: float, data: Windows) -> float:
    """The loss when one channel of what one layer adds to the residual stream is scaled in one sequence."""
    block = model.backbone.blocks[place]
    forward, connected = block.forward, block.connected

    def change(x_BTD: Tensor, out_BTD: Tensor) -> Tensor:
        factors = torch.ones_like(out_BTD)
        factors[row, :, channel] = factor
        return x_BTD + factors * (out_BTD - x_BTD)

    def connected_scaled(x_BTD: Tensor, *rest: object) -> tuple[object, ...]:
        out_BTD, *others = connected(x_BTD, *rest)
        return change(x_BTD, out_BTD), *others

    try:
        block.forward = lambda x_BTD, *rest: change(x_BTD, forward(x_BTD, *rest))
        block.connected = connected_scaled
        return cross_entropy(model, *data(0)).item()
    finally:
        del block.forward, block.connected


@pytest.mark.parametrize(
    "layers",
    [
        "attn[heads=2,share=a] mlp[inner=6,act=silu,share=a] attn[heads=2,share=a] mlp[inner=6,act=silu,share=a]",
        "attn[heads=2] mlp[inner=6,act=silu] cross-attn[heads=2]",
    ],
    ids=["shared", "reading"],
)
def test_fisher_counts_each_layer_once_where_layers_share_or_read_of_each_other(layers: str, data: Windows) -> None:
    model, step = tiny(f"d=4 vocab=20 | {layers}"), 1e-5
    total = 0.0
    for place in range(len(model.backbone.blocks)):
        for channel in range(4):
            changes = []
            for row in range(3):
                up, down = (scaled_layer(model, place, channel, row, 1 + sign * step, data) for sign in (1, -1))
                changes.append((up - down) / (2 * step))
            total += 0.5 * float(np.mean(np.square(changes)))
    assert load_proxy("fisher").score(model, data) == pytest.approx(total, rel=1e-5)


def test_synflow_of_one_map_is_its_absolute_sum(data: Windows) -> None:
    # Ones in, a relu MLP without biases: R = Σ |W₂| |W₁| 1 at every position; each of the two maps has all of it.
    model = tiny("d=8 vocab=20 final_norm=false | mlp[inner=6,act=relu,bias=false]")
    by_name = dict(model.named_parameters())
    up, down = (by_name[f"backbone.blocks.0.mixer.{name}.weight"].detach().abs() for name in ("up", "down"))
    flow = 5 * float((down @ up @ torch.ones(8, dtype=torch.float64)).sum())
    assert load_proxy("synflow").score(model, data) == pytest.approx(2 * flow, rel=1e-9)


@pytest.mark.parametrize("name", [name for name in names() if name != "identity"])
def test_synflow_is_positive_and_needs_no_data(name: str, data: Windows) -> None:
    wide = {"deltanet", "gated-deltanet", "hgrn2", "deltaproduct", "kda"}
    before = {"cross-attn": "attn ", "gmu": "mamba "}.get(name, "")  # what they read of
    text = f"d=64 vocab=20 norm=layer | {before}{name}{'[head_dim=32]' if name in wide else ''} mlp"
    model = build(text)
    before = [parameter.clone() for parameter in model.parameters()]
    score = load_proxy("synflow").score(model, data)
    assert 0 < score < math.inf
    assert load_proxy("synflow").score(model, Windows(TOKENS[::-1].copy(), batch=7, seq=5, seed=9)) == score
    assert all((now == was).all() for now, was in zip(model.parameters(), before, strict=True))


def test_signs_do_not_matter_to_synflow(data: Windows) -> None:
    model, flipped = tiny(), tiny()
    with torch.no_grad():
        for weight in block_weights(flipped):
            weight.neg_()
    assert load_proxy("synflow").score(model, data) == pytest.approx(load_proxy("synflow").score(flipped, data))


def test_relu_log_det_counts_agreements() -> None:
    signs = torch.tensor([[True, True, False, False], [True, False, False, False], [False, False, True, True]])
    assert agreement(signs).tolist() == [[4, 3, 0], [3, 4, 1], [0, 1, 4]]


@pytest.mark.parametrize("channel", ["mlp[act=relu]", "mlp[act=gelu]", "swiglu"])
def test_relu_log_det_sees_every_nonlinearity(channel: str, data: Windows) -> None:
    model = tiny(f"d=8 vocab=20 | attn[heads=2] {channel}")
    kept: list[Tensor] = []
    up = model.backbone.blocks[1].mixer.gate_up if channel == "swiglu" else model.backbone.blocks[1].mixer.up  # type: ignore
    up.register_forward_hook(lambda _m, _i, out: kept.append(out.detach()))
    score = load_proxy("relu_log_det").score(model, data)
    units = kept[0].chunk(2, dim=-1)[0] if channel == "swiglu" else kept[0]
    assert score == pytest.approx(float(torch.linalg.slogdet(agreement((units > 0).flatten(1)))[1]))
    assert load_proxy("relu_log_det").flops(1000, 8) == 1000 + 512


def test_equal_inputs_degenerate(data: Windows) -> None:
    model = tiny()
    tokens, targets = data(0)

    def equal(_step: int) -> tuple[Tensor, Tensor]:
        return tokens[:1].expand(3, -1), targets[:1].expand(3, -1)

    assert load_proxy("relu_log_det").score(model, equal) == -math.inf
    # Correlations of 1: eigenvalues 3, 0, 0, so that two terms are 1/k = 1e5.
    assert load_proxy("jacob_cov").score(model, equal) == pytest.approx(-2e5, rel=1e-3)
    assert load_proxy("jacob_cov").score(model, data) > -1e4


def test_rows_without_correlation_score_best() -> None:
    # Eigenvalues of 1: −Σ (log 1 + 1/1) = −rows.
    rows = torch.tensor([[1.0, -1, 0, 0], [0, 0, 1, -1], [1, 1, -1, -1]])
    assert correlation_score(rows) == pytest.approx(-3, rel=1e-4)
    assert correlation_score(rows * torch.tensor([[2.0], [30.0], [0.5]])) == pytest.approx(
        -3, rel=1e-4
    )  # scale is nothing


def test_jacob_cov_is_about_the_embeddings(data: Windows) -> None:
    model = tiny("d=8 vocab=20 | mlp[inner=6,act=silu]")
    tokens, _ = data(0)
    embedded = model.backbone.embedding(tokens).detach()
    rows, step = torch.zeros(3, 5, 8, dtype=torch.float64), 1e-6
    for at in np.ndindex(3, 5, 8):
        sides = []
        for sign in (1, -1):
            moved = embedded.clone()
            moved[at] += sign * step
            hook = model.backbone.embedding.register_forward_hook(lambda _m, _i, _o, moved=moved: moved)
            with torch.no_grad():
                sides.append(model(tokens).sum().item())
            hook.remove()
        rows[at] = (sides[0] - sides[1]) / (2 * step)
    assert load_proxy("jacob_cov").score(model, data) == pytest.approx(correlation_score(rows.flatten(1)), rel=1e-4)


def test_short_training_prefers_what_learns() -> None:
    pattern = Windows(np.tile(np.arange(20), 40), batch=8, seq=10)
    noise = Windows(np.random.default_rng(1).integers(0, 20, 4000), batch=8, seq=10)
    model = build("d=16 vocab=20 | attn[heads=2] mlp")
    before = [parameter.clone() for parameter in model.parameters()]
    quick = ShortTraining(steps=30, lr=1e-2)
    assert -math.log(20) + 1 < quick.score(model, pattern) < 0
    assert quick.score(model, pattern) > quick.score(model, noise) + 1
    assert quick.score(model, pattern) == quick.score(model, pattern)
    assert all((now == was).all() for now, was in zip(model.parameters(), before, strict=True))
    assert quick.flops(10, 8) == 910


@pytest.mark.parametrize("proxy", [name for name in PROXIES if name != "short_training"])
@pytest.mark.parametrize(
    "layers",
    ["mamba[state=4] moe[experts=4]", "gla[heads=2] identity", "rwkv6[head_dim=16] swiglu", "hyena mlp[act=relu]"],
)
def test_every_proxy_scores_hybrids_and_leaves_them_as_they_were(proxy: str, layers: str, data: Windows) -> None:
    model = build(f"d=32 vocab=20 tie=true embed=adaptive cutoffs=5/10 div=2 | {layers}")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    score = load_proxy(proxy).score(model, data)
    assert math.isfinite(score)
    assert load_proxy(proxy).score(model, data) == score
    assert all((model.state_dict()[name] == value).all() for name, value in before.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks for module in model.modules())


def test_costs_in_forward_passes() -> None:
    costs: dict[str, Callable[[int, int], int]] = {name: load_proxy(name).flops for name in PROXIES}
    three = {"snip", "grad_norm", "fisher", "jacob_cov", "synflow"}
    assert {name for name, cost in costs.items() if cost(100, 4) == 300} == three
    assert (costs["grasp"](100, 4), costs["relu_log_det"](100, 4)) == (800, 164)


def test_windows_depend_on_seed_and_step_alone() -> None:
    one, two = Windows(TOKENS, batch=3, seq=5), Windows(TOKENS, batch=3, seq=5)
    two(7)
    assert (one(3)[0] == two(3)[0]).all()
    assert (one(3)[0] != one(4)[0]).any()
    tokens, targets = one(0)
    assert tokens.shape == targets.shape == (3, 5)
    assert (tokens[:, 1:] == targets[:, :-1]).all()
    with pytest.raises(UserError, match="too few"):
        Windows(TOKENS[:5], batch=1, seq=5)


def test_unknown_proxies_get_a_hint() -> None:
    with pytest.raises(UserError, match="Did you mean 'synflow'"):
        load_proxy("sinflow")


def test_a_single_row_is_like_no_other() -> None:
    assert correlation_score(torch.tensor([[1.0, 2.0, 4.0]])) == pytest.approx(-1, rel=1e-4)
