"""The loss at some positions alone is the loss: outputs and all gradients, for every mixer."""

from __future__ import annotations

import pytest
import torch

from plait.mixers.mixer import ChannelMixer
from plait.mixers.rotary import Rotary
from plait.model import build
from plait.model.language_model import IGNORE
from plait.ops.attention import FEW_QUERIES

TOKENS = 12
BODIES = [
    "(attn[heads=2] swiglu[inner=24])x2",
    "(attn[heads=4,kv_heads=2,qk_norm=shared,kv_shift,out_gate] mlp)x2",
    "attn[heads=2,window=3] swiglu",
    "attn[heads=2,pos=alibi] swiglu",
    "attn[heads=2,sinks] swiglu",
    "(fox[heads=2] swiglu)x2",
    "gla swiglu[canon=d] attn[canon=ab] mlp",
    "gla[heads=2] moe[experts=3,active=2,inner=8]",
    "attn[heads=2] mamba2[head_dim=8]",
    "mlp swiglu",
    "hyena swiglu identity",
]


def scored(stream: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Positions of a batch, a different number in each row, filled up with others; and which of them count."""
    first = torch.rand(3, TOKENS, generator=stream).argsort(-1)[:, :5].sort(-1).values
    return first, torch.arange(5) < torch.tensor([[5], [2], [3]])


@pytest.mark.parametrize("body", BODIES)
def test_the_loss_at_some_positions_is_the_loss(body: str) -> None:
    model = build(f"d=16 vocab=9 | {body}", seed=3).double()
    stream = torch.Generator().manual_seed(1)
    tokens, answers = (torch.randint(9, (3, TOKENS), generator=stream) for _ in range(2))
    at, counts = scored(stream)
    few = answers.gather(1, at).masked_fill(~counts, IGNORE)
    everywhere = torch.full_like(answers, IGNORE).scatter(1, at, few)
    expected = model.loss(tokens, everywhere)
    wanted = torch.autograd.grad(expected, list(model.parameters()), allow_unused=True)
    loss = model.loss(tokens, few, at)
    grads = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
    torch.testing.assert_close(loss, expected)
    for (name, _), ours, theirs in zip(model.named_parameters(), grads, wanted, strict=True):
        assert (ours is None) == (theirs is None), name
        if ours is not None and theirs is not None:
            torch.testing.assert_close(ours, theirs, msg=lambda text, name=name: f"{name}: {text}")


def test_nothing_else_is_computed_after_the_last_layer_that_mixes_positions() -> None:
    model = build("d=16 vocab=9 | (attn[heads=2] swiglu)x2 mlp")
    seen: list[tuple[int, ...]] = []
    for block in model.backbone.blocks:
        block.mixer.register_forward_pre_hook(lambda mixer, args: seen.append(tuple(args[0].shape[:2])))
    tokens, at = torch.randint(9, (3, TOKENS)), torch.tensor([[1, 4]] * 3)
    model.loss(tokens, tokens[:, :2], at)
    assert seen == [(3, TOKENS), (3, TOKENS), (3, 2), (3, 2)]  # the last attention is asked for positions


def test_many_positions_go_through_the_whole_sequence() -> None:
    """More queries than a tile holds are computed with all the others, without a quadratic tensor."""
    model = build("d=16 vocab=9 | attn[heads=2] swiglu").double()
    tokens = torch.randint(9, (1, FEW_QUERIES + 40))
    at = torch.arange(5, FEW_QUERIES + 10)[None]
    everywhere = torch.full_like(tokens, IGNORE).scatter(1, at, tokens.gather(1, at))
    torch.testing.assert_close(model.loss(tokens, tokens.gather(1, at), at), model.loss(tokens, everywhere))


def test_a_channel_mixer_with_a_state_sees_the_whole_sequence() -> None:
    """A user's channel mixer may shift tokens, as RWKV's does: it overrides the state that others do not have."""

    class Shifted(ChannelMixer):
        def forward(self, x_BTD: torch.Tensor) -> torch.Tensor:
            return x_BTD + torch.nn.functional.pad(x_BTD, (0, 0, 1, -1))

        def init_state(self, batch: int, *, rollback: int = 0) -> dict[str, torch.Tensor]:
            return {"last": torch.zeros(batch, 16)}

    model = build("d=16 vocab=9 | attn[heads=2] mlp").double()
    plain = model.backbone.blocks[1].mixer
    assert plain.pointwise
    model.backbone.blocks[1].mixer = Shifted(16, plain.options)
    assert not model.backbone.blocks[1].mixer.pointwise
    tokens, at = torch.randint(9, (3, TOKENS)), torch.tensor([[1, 4]] * 3)
    everywhere = torch.full_like(tokens, IGNORE).scatter(1, at, tokens.gather(1, at))
    torch.testing.assert_close(model.loss(tokens, tokens.gather(1, at), at), model.loss(tokens, everywhere))


def test_queries_at_some_positions_turn_by_them_where_one_kernel_splits_keys_and_values(monkeypatch) -> None:
    """As on a GPU: the kernel's split, computed in parts, leaves the result as it is."""

    def split(rotary: Rotary, packed_BTAP: torch.Tensor, heads: int) -> tuple[torch.Tensor, ...]:
        groups = (packed_BTAP.shape[2] - heads) // 2
        q, k, v = packed_BTAP.split([heads, groups, groups], dim=2)
        return q, rotary(k), v  # of no query at all

    mixer = build("d=16 vocab=9 | attn[heads=4,kv_heads=2]").backbone.blocks[0].mixer
    x_BTD, at_BN = torch.randn(3, TOKENS, 16), torch.tensor([[1, 4, 11], [0, 2, 3], [5, 5, 7]])
    wanted = mixer(x_BTD).gather(1, at_BN[..., None].expand(-1, -1, 16))
    monkeypatch.setattr(Rotary, "split", split)
    torch.testing.assert_close(mixer.forward_at(x_BTD, at_BN)[0], wanted)


@pytest.mark.parametrize("more", ["qkv_bias=true", "qk_norm=shared", "kv_shift=true,bias=true"])
def test_queries_at_some_positions_have_their_biases_and_norms(more: str) -> None:
    """A new model's biases are zero and its norms one."""
    mixer = build(f"d=16 vocab=9 | attn[heads=4,kv_heads=2,{more}]").backbone.blocks[0].mixer
    for parameter in mixer.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    x_BTD, at_BN = torch.randn(3, TOKENS, 16), torch.tensor([[1, 4, 11], [0, 2, 3], [5, 5, 7]])
    wanted = mixer(x_BTD).gather(1, at_BN[..., None].expand(-1, -1, 16))
    torch.testing.assert_close(mixer.forward_at(x_BTD, at_BN)[0], wanted)


class Twice(torch.nn.Linear):
    """Stands for an adapter, or for a part of the matrix whose gradients are summed over processes."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(x)


@pytest.mark.parametrize("replaced", [False, True])
def test_queries_at_some_positions_are_those_of_a_projection_that_is_more_than_a_matrix(replaced: bool) -> None:
    """Its rows alone lacked the adapters and the scale of Zamba2, and the sums of tensor parallelism."""
    spec, width = ("attn[heads=4]", 64) if replaced else ("zamba2[heads=4,lora=2,lora_attn=true]", 128)
    mixer = build(f"d=64 vocab=9 | {spec}").backbone.blocks[0].mixer
    attention = mixer if replaced else mixer.attention
    if replaced:
        mixer.qkv.__class__ = Twice
    for parameter in attention.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    x_BTD, at_BN = torch.randn(3, TOKENS, width), torch.tensor([[1, 4, 11], [0, 2, 3], [5, 5, 7]])
    wanted = attention(x_BTD).gather(1, at_BN[..., None].expand(-1, -1, 64))
    torch.testing.assert_close(attention.forward_at(x_BTD, at_BN)[0], wanted)
