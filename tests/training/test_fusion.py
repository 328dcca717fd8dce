"""Fused models: each exit is the extracted model, weights are shared, work is shared, and misfits are refused."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.model import build
from plait.model.architecture import architecture
from plait.training.fusion import Fused, fuse

VOCAB = 11
HEADER = f"d=16 vocab={VOCAB}"
SETS = {
    "depths": ["(attn[heads=2] swiglu[inner=24])x3", "(attn[heads=2] swiglu[inner=24])x5"],
    "three": ["gla[heads=2]", "gla[heads=2] mlp[inner=8]", "gla[heads=2] mlp[inner=8] hyena[state=2]"],
    "inner": ["attn[heads=2] mlp[inner=16] mlp[inner=8]", "attn[heads=2] mlp[inner=24]"],
    "gated inner": ["gla[heads=2] swiglu[inner=24]", "gla[heads=2] swiglu[inner=10] attn[heads=4]"],
    "heads": ["attn[heads=4] mlp[inner=8]", "attn[heads=2] mlp[inner=8] attn[heads=2]"],
    "head slices": ["attn[heads=4,head_dim=4,bias] mlp[inner=8]", "attn[heads=2,head_dim=4,bias] mlp[inner=8]"],
    "forgetting": ["fox[heads=4,head_dim=4]", "fox[heads=2,head_dim=4] mlp[inner=8]"],
    "experts": ["gla[heads=2] moe[experts=3,active=2,inner=8]", "gla[heads=2] moe[experts=3,active=2,inner=8] mamba"],
    "shared biases": ["xl-attn[heads=2,shared_bias=true] mlp", "(xl-attn[heads=2,shared_bias=true] mlp)x2"],
}
HEADERS = {
    "plain": HEADER,
    "tied, learned positions": f"{HEADER} tie=true pos=learned max_len=16 norm=layer",
    "adaptive": f"{HEADER} embed=adaptive cutoffs=4/8 div=2 final_norm=false embed_norm=true",
}


def tokens(seed: int = 0) -> tuple[Tensor, Tensor]:
    drawn = torch.randint(VOCAB, (3, 13), generator=torch.Generator().manual_seed(seed))
    return drawn[:, :-1], drawn[:, 1:]


def made(name: str, header: str = HEADER) -> Fused:
    fused = fuse([f"{header} | {body}" for body in SETS[name]], seed=1)
    with torch.no_grad():  # norms differ from their initial values and from each other
        for i, norm in enumerate(fused.final_norms):
            for parameter in norm.parameters():
                parameter.add_(0.1 * (i + 1) * torch.randn(parameter.shape))
    return fused


@pytest.mark.parametrize("name", SETS)
def test_an_extracted_model_is_its_exit(name: str) -> None:
    fused = made(name)
    x, y = tokens()
    losses = fused.loss(x, y)
    for i, scores in enumerate(fused(x)):
        model = fused.extract(i)
        assert model.arch == architecture(f"{HEADER} | {SETS[name][i]}")
        assert torch.equal(model(x), scores)
        assert torch.equal(model.loss(x, y), losses[i])


@pytest.mark.parametrize("header", HEADERS)
def test_whatever_the_header(header: str) -> None:
    fused = made("inner", HEADERS[header])
    x, _ = tokens()
    for i, scores in enumerate(fused(x)):
        assert torch.equal(fused.extract(i)(x), scores)


def test_the_deepest_alone_is_an_ordinary_model() -> None:
    archs = [f"{HEADER} | {body}" for body in SETS["depths"]]
    x, y = tokens()
    assert torch.equal(fuse(archs, seed=3).loss(x, y)[1], build(archs[1], seed=3).loss(x, y))


def test_weights_are_held_once() -> None:
    fused, deep = made("depths"), build(f"{HEADER} | {SETS['depths'][1]}")
    assert sum(p.numel() for p in fused.parameters()) == sum(p.numel() for p in deep.parameters()) + 16


def test_every_exit_trains_what_it_uses() -> None:
    fused = made("inner")
    x, y = tokens()
    fused.loss(x, y)[1].backward()  # the one of two layers with the wide mlp
    grads = {name: p.grad for name, p in fused.named_parameters()}
    assert grads["trunk.backbone.blocks.1.mixer.up.weight"].abs().sum(dim=1).gt(0).all()
    assert grads["trunk.backbone.blocks.2.mixer.up.weight"].eq(0).all()
    assert grads["final_norms.0.weight"].eq(0).all()
    fused.zero_grad()
    fused.loss(x, y)[0].backward()  # the narrow one uses 16 of 24 rows
    rows = fused.get_parameter("trunk.backbone.blocks.1.mixer.up.weight").grad.abs().sum(dim=1)
    assert rows[:16].gt(0).all()
    assert rows[16:].eq(0).all()


def test_training_all_lowers_each_loss() -> None:
    fused = made("depths")
    optimizer = torch.optim.AdamW(fused.parameters(), lr=1e-2)
    x, y = tokens()
    before = fused.loss(x, y).detach()
    for _ in range(15):
        optimizer.zero_grad()
        fused.loss(x, y).sum().backward()
        optimizer.step()
    assert (fused.loss(x, y) < 0.8 * before).all()
    assert torch.equal(fused.extract(0)(x), fused(x)[0])


def test_work_is_shared_as_far_as_models_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    original = Fused._run
    monkeypatch.setattr(Fused, "_run", lambda self, place, o, x: (ran.append(place), original(self, place, o, x))[1])
    x, _ = tokens()
    made("depths")(x)
    assert ran == list(range(10))  # as many as the deepest has
    ran.clear()
    made("inner")(x)
    assert ran == [0, 1, 1, 2]


def test_an_extracted_model_is_a_copy() -> None:
    fused = made("depths")
    x, _ = tokens()
    before = fused(x)[0]
    with torch.no_grad():
        for parameter in fused.extract(0).parameters():
            parameter.zero_()
    assert torch.equal(fused(x)[0], before)


@pytest.mark.parametrize(
    ("bodies", "message"),
    [
        (["d=16 | attn"], "two or more"),
        (["d=16 | attn[heads=2]", "d=16 | attn[heads=2]"], "given twice"),
        (["d=16 | attn", "d=32 | attn mlp"], "d=16 and d=32"),
        (["d=16 vocab=9 | attn", "d=16 vocab=8 | attn mlp"], "vocab=9 and vocab=8"),
        (["d=16 | attn mlp", "d=16 | attn swiglu"], "layer 2 is mlp in one model and swiglu in another"),
        (["d=16 | mlp[act=relu]", "d=16 | mlp[inner=8]"], "layer 1, mlp: act=gelu and act=relu; .* inner and heads"),
        (
            ["d=16 | gla[heads=2]", "d=16 | gla[heads=2] gla[heads=4]", "d=16 | gla[heads=4]"],
            "layer 1, gla: .* no slice",
        ),
        (
            ["d=16 | attn[heads=4,head_dim=4,kv_heads=2]", "d=16 | attn[heads=2,head_dim=4,kv_heads=2] mlp"],
            "with kv_heads",
        ),
        (["d=16 kind=encoder | attn[causal=false]", "d=16 kind=encoder | attn[causal=false] mlp"], "kind=encoder"),
    ],
)
def test_what_cannot_be_fused_is_refused(bodies: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        fuse(bodies)


def test_too_many_positions_are_refused() -> None:
    fused = made("inner", HEADERS["tied, learned positions"])
    with pytest.raises(UserError, match="17 tokens given, but the models have max_len=16"):
        fused(torch.zeros(1, 17, dtype=torch.long))
