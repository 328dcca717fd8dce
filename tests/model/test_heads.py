"""The three model kinds: parallel, chunked and stepwise reading agree; states are batched, reordered and cropped."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.model import build

SPECS = {
    "gpt2": "d=32 vocab=19 pos=learned max_len=64 tie=true norm=layer | (attn[heads=4,pos=none,bias] mlp)x2",
    "llama": "d=32 vocab=19 | (attn[heads=4,kv_heads=2] swiglu)x2",
    "alibi": "d=32 vocab=19 pos=sinusoidal | (attn[heads=4,pos=alibi] mlp)x2",
    "window": "d=32 vocab=19 | (attn[heads=4,window=5] swiglu)x2",
    "fox-llama": "d=32 vocab=19 | (fox[heads=4] swiglu)x2",
    "fox-pro": "d=32 vocab=19 | (fox[heads=4,kv_heads=2,qk_norm=per-head,out_gate,out_norm,kv_shift] swiglu)x2",
    "fox-pro-window": "d=32 vocab=19 | (fox[heads=4,window=6,qk_norm=shared,kv_shift] swiglu)x2",
    "fox-bias-only": "d=32 vocab=19 | (fox[heads=4,forget=bias-only] swiglu)x2",
    "fox-fixed": "d=32 vocab=19 | (fox[heads=4,forget=fixed,pos=rope] moe[experts=4,inner=16])x2",
    "xl": "d=32 vocab=19 norm=layer | (xl-attn[heads=4] mlp)x2",
    "xl-clamp-window": "d=32 vocab=19 norm=layer | (xl-attn[heads=4,clamp=4,window=7,shared_bias] mlp)x2",
    "par": "d=32 vocab=19 norm=layer | par:(sfff)x1 (f)x2 i",
}
PADDABLE = [name for name in SPECS if name not in ("xl", "xl-clamp-window", "par")]


def made(name):
    return build(SPECS[name]).double()


def tokens(batch, length, seed=0):
    return torch.randint(19, (batch, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", SPECS)
def test_chunks_and_steps_give_the_parallel_logits(name):
    model, given = made(name), tokens(2, 23)
    whole = model(given)
    state, parts = model.init_state(2), []
    for chunk in given[:, :20].split([1, 9, 2, 8], dim=1):
        part, state = model.extend(chunk, state)
        parts.append(part)
    for token in given[:, 20:].unbind(1):
        part, state = model.step(token, state)
        parts.append(part[:, None])
    torch.testing.assert_close(torch.cat(parts, dim=1), whole)


@pytest.mark.parametrize("name", SPECS)
def test_rows_can_be_reordered(name):
    model, given = made(name), tokens(3, 11)
    _, state = model.extend(given[:, :8], model.init_state(3))
    rows = torch.tensor([2, 0, 2])
    after, _ = model.extend(given[rows, 8:], state.reorder(rows))
    torch.testing.assert_close(after, model(given[rows])[:, 8:])


@pytest.mark.parametrize("name", SPECS)
def test_tokens_can_be_taken_back(name):
    model, given = made(name), tokens(2, 15)
    _, state = model.extend(given[:, :12], model.init_state(2, rollback=4))
    cropped = model.crop(state, 4)
    again, _ = model.extend(given[:, 8:], cropped)
    torch.testing.assert_close(again, model(given)[:, 8:])


@pytest.mark.parametrize("name", ["fox-pro", "fox-pro-window", "window", "xl-clamp-window"])
def test_taking_back_more_than_was_kept_is_refused(name):
    model = made(name)
    _, state = model.extend(tokens(1, 12), model.init_state(1, rollback=2))
    with pytest.raises(UserError, match="rollback"):
        model.crop(state, 3)


@pytest.mark.parametrize("name", PADDABLE)
def test_states_of_different_lengths_merge_into_one_batch(name):
    model, a, b = made(name), tokens(1, 13), tokens(1, 9, seed=1)
    _, state_a = model.extend(a[:, :7], model.init_state(1))
    _, state_b = model.extend(b[:, :3], model.init_state(1))
    state = model.merge([state_a, state_b])
    for i in range(6):
        scores, state = model.step(torch.stack([a[0, 7 + i], b[0, 3 + i]]), state)
    expected = torch.cat([model(a)[:, -1], model(b)[:, -1]])
    torch.testing.assert_close(scores, expected)


@pytest.mark.parametrize("name", PADDABLE)
def test_left_padding_changes_nothing(name):
    model, given = made(name), tokens(3, 14)
    pad = torch.tensor([0, 3, 9])
    whole = model(given, pad_B=pad)
    state, parts = model.init_state(3, pad_B=pad), []
    for chunk in given.split([5, 4, 1, 4], dim=1):
        part, state = model.extend(chunk, state)
        parts.append(part)
    chunked = torch.cat(parts, dim=1)
    for row, skip in enumerate(pad.tolist()):
        alone = model(given[row : row + 1, skip:])[0]
        torch.testing.assert_close(whole[row, skip:], alone)
        torch.testing.assert_close(chunked[row, skip:], alone)


def test_mixers_without_padding_say_so():
    model = build("d=16 vocab=19 | gla[heads=2] swiglu").double()
    with pytest.raises(UserError, match="merge"):
        model(tokens(2, 4), pad_B=torch.tensor([0, 1]))


def test_fixed_state_bytes_are_counted():
    model = made("llama")
    _, state = model.extend(tokens(2, 10), model.init_state(2))
    assert state.nbytes == sum(2 * 10 * 2 * 2 * 8 * 8 + 2 * 8 for _ in range(2))  # k, v and the position, float64


def test_transformer_xl_trains_over_segments():
    model, given, targets = made("xl"), tokens(2, 12), tokens(2, 12, seed=1)
    memory, losses = model.init_memory(2, tokens=12), []
    for segment, wanted in zip(given.split(4, dim=1), targets.split(4, dim=1), strict=True):
        loss, memory = model.loss_with_memory(segment, wanted, memory)
        losses.append(loss)
    torch.testing.assert_close(torch.stack(losses).mean(), model.loss(given, targets))
    # Keys of the memory come from the current weights; the memory itself is cut off from the graph.
    assert all(not layer["hidden"].requires_grad for layer in memory.layers if layer)
    assert memory.layers[0]["hidden"].shape[1] == 12


def test_memory_keeps_no_more_than_asked():
    model = made("xl")
    memory = model.init_memory(1, tokens=5)
    for segment in tokens(1, 12).split(4, dim=1):
        _, memory = model.loss_with_memory(segment, segment, memory)
    assert memory.layers[0]["hidden"].shape[1] == 5


def test_shared_biases_are_one_pair():
    model = made("xl-clamp-window")
    first, second = model.backbone.blocks[0].mixer, model.backbone.blocks[2].mixer
    assert first.content_bias_HP is second.content_bias_HP
    assert first.position_bias_HP is second.position_bias_HP


ADAPTIVE = "d=16 vocab=50 embed=adaptive cutoffs=10/30 tie={tie} div={div} d_embed={d_embed} | mlp"


@pytest.mark.parametrize("tie", ["true", "false"])
@pytest.mark.parametrize("div", [1, 2])
@pytest.mark.parametrize("d_embed", [16, 8])
def test_adaptive_softmax_is_a_distribution_and_its_loss_agrees(tie, div, d_embed):
    model = build(ADAPTIVE.format(tie=tie, div=div, d_embed=d_embed), seed=3).double()
    with torch.no_grad():
        for parameter in model.output.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    given = torch.randint(50, (3, 40), generator=torch.Generator().manual_seed(0))
    log_probs = model(given)
    torch.testing.assert_close(log_probs.exp().sum(-1), torch.ones(3, 40, dtype=torch.float64))
    targets = given.roll(1, dims=1).clone()
    targets[0, :5] = -100
    expected = F.nll_loss(log_probs.flatten(0, 1), targets.flatten(), ignore_index=-100)
    torch.testing.assert_close(model.loss(given, targets), expected)


def test_encoder_sees_both_sides_and_segments():
    model = build(
        "d=32 vocab=23 kind=encoder pos=learned max_len=16 segments=2 embed_norm=true norm=layer"
        " head_bias=true tie=true | (attn[heads=4,causal=false,pos=none,bias] mlp)x2"
    ).double()
    given = torch.randint(23, (2, 9), generator=torch.Generator().manual_seed(0))
    changed = given.clone()
    changed[:, -1] = (changed[:, -1] + 1) % 23
    assert not torch.allclose(model(given)[:, 0], model(changed)[:, 0])
    segments = torch.zeros_like(given)
    torch.testing.assert_close(model(given), model(given, segments_BT=segments))
    assert not torch.allclose(model(given), model(given, segments_BT=segments + 1))
    targets = torch.full_like(given, -100)
    targets[:, 3] = given[:, 3]
    expected = F.cross_entropy(model(given)[:, 3], given[:, 3])
    torch.testing.assert_close(model.loss(given, targets), expected)
    with pytest.raises(UserError, match="no state"):
        model.backbone.init_state(1)


def test_autoencoder_reads_only_the_last_vector():
    model = build("d=32 vocab=16 kind=autoencoder | (attn[heads=4] swiglu)x2").double()
    given = torch.randint(16, (4, 10), generator=torch.Generator().manual_seed(0))
    scores = model(given)
    assert scores.shape == (4, 10, 16)
    torch.testing.assert_close(model.decode(model.backbone(given)[:, -1:], 10), scores)
    # The loss computes the last position alone, and is that of the logits.
    torch.testing.assert_close(model.loss(given, given), F.cross_entropy(scores.flatten(0, 1), given.flatten()))


def test_too_many_tokens_for_learned_positions_are_refused():
    with pytest.raises(UserError, match="max_len=64"):
        made("gpt2")(tokens(1, 65))


def test_experts_add_their_balance_loss():
    model = build("d=32 vocab=19 | moe[experts=4,inner=16,balance=0.5]").double()
    given = tokens(2, 8)
    plain = model.score(model.backbone(given), given)
    assert model.loss(given, given) > plain + 0.4  # even load costs balance × 1
