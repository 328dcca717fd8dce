"""Latent attention against softmax attention written out, its cache, and the sizes DeepSeek publishes."""

from __future__ import annotations

import pytest
import torch

from plait.core.errors import UserError
from plait.mixers.mla import MlaOptions
from plait.mixers.mla_module import LatentAttention
from plait.ops.elementwise import rotary_angles, rotate_reference

VARIANTS = [
    MlaOptions(heads=2, kv_rank=5, nope_dim=3, rope_dim=4, v_dim=3),
    MlaOptions(heads=2, kv_rank=5, q_rank=7, nope_dim=3, rope_dim=4, v_dim=9, out_gate="per-head"),
    MlaOptions(heads=2, kv_rank=5, nope_dim=3, rope_dim=4, v_dim=2, pos="none", out_gate="per-element"),
]


def made(options: MlaOptions) -> LatentAttention:
    torch.manual_seed(0)
    mixer = LatentAttention(8, options).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.5)
    return mixer


def rms(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * weight


@pytest.mark.parametrize("options", VARIANTS)
def test_forward_is_softmax_attention_over_expanded_latents(options: MlaOptions) -> None:
    mixer, T = made(options), 9
    x = torch.randn(T, 8, dtype=torch.float64)
    hidden = rms(mixer.query_down(x), mixer.query_norm.weight) if options.q_rank else x
    q = mixer.query(hidden).view(T, 2, 7)
    c, e = mixer.latent(x).split([5, 4], dim=-1)
    c = rms(c, mixer.latent_norm.weight)
    if options.pos == "rope":
        cos, sin = rotary_angles(torch.arange(T), 4, 10000.0, x.dtype)
        q = torch.cat((q[..., :3], rotate_reference(q[..., 3:], cos, sin)), dim=-1)
        e = rotate_reference(e[:, None], cos, sin)[:, 0]
    outputs = []
    for t in range(T):
        heads = []
        for h in range(2):
            both = mixer.expand.weight.view(2, 3 + options.v_dim, 5)[h]
            keys = torch.stack([torch.cat((both[:3] @ c[s], e[s])) for s in range(t + 1)])
            values = torch.stack([both[3:] @ c[s] for s in range(t + 1)])
            heads.append((keys @ q[t, h] / 7**0.5).softmax(0) @ values)
        o = torch.stack(heads)
        if options.out_gate != "none":
            o = o * mixer.gate(x[t]).sigmoid().view(2, -1)
        outputs.append(mixer.output(o.flatten()))
    torch.testing.assert_close(mixer(x[None])[0], torch.stack(outputs))


def test_the_cache_holds_576_numbers_per_token_at_deepseeks_sizes() -> None:
    options = MlaOptions(heads=128, kv_rank=512, q_rank=1536, nope_dim=128, rope_dim=64, v_dim=128)
    cost = options.cost(7168, 1)
    assert cost.kv_cache == 576
    # d r_q + r_q H 192 + d (r + 64) + r H 256 + H 128 d, and both norms
    assert cost.total_params == 187_107_328


def test_a_merged_batch_goes_on_as_its_rows_would() -> None:
    mixer = made(VARIANTS[0])
    rows = [torch.randn(1, n, 8, dtype=torch.float64) for n in (3, 6)]
    states = [mixer.extend(row, mixer.init_state(1))[1] for row in rows]
    more = torch.randn(2, 2, 8, dtype=torch.float64)
    together, _ = mixer.extend(more, mixer.merge(states))
    alone = torch.cat([mixer.extend(more[i : i + 1], states[i])[0] for i in range(2)])
    torch.testing.assert_close(together, alone)


def test_padding_is_not_seen() -> None:
    mixer = made(VARIANTS[1])
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    padded = torch.cat((torch.randn(1, 2, 8, dtype=torch.float64), x), dim=1)
    # Only distances count, so that starting two places later changes nothing.
    torch.testing.assert_close(mixer(padded, torch.tensor([2]))[:, 2:], mixer(x))


def test_crop_takes_tokens_back() -> None:
    mixer = made(VARIANTS[0])
    x = torch.randn(1, 6, 8, dtype=torch.float64)
    _, before = mixer.extend(x[:, :4], mixer.init_state(1))
    _, after = mixer.extend(x[:, 4:], before)
    back = mixer.crop(after, 2)
    assert all(torch.equal(back[key], before[key]) for key in before)
    with pytest.raises(UserError, match="cannot take back 7 tokens: mla has seen 6"):
        mixer.crop(after, 7)


def test_rotations_need_an_even_width() -> None:
    with pytest.raises(UserError, match="needs an even rope_dim, not 5"):
        MlaOptions(rope_dim=5).check(64)


def test_widths_follow_the_model() -> None:
    assert MlaOptions().widths(128) == (64, 16, 8, 16)
    with pytest.raises(UserError, match="d=60 is not a multiple of heads=8"):
        MlaOptions().check(60)
