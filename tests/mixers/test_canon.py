"""Canon layers: h + conv(h), where they stand, and what they cost."""

from __future__ import annotations

import pytest
import torch

from plait.mixers.mixer import make_mixer
from plait.mixers.options import OptionError
from plait.mixers.table import load
from plait.model import build
from plait.model.architecture import options_of
from plait.model.cost import model_cost
from plait.model.language_model import seed_mixer
from plait.spec import parse


def mixer(text, d=16):
    made = make_mixer(options_of(parse(text).layers[0]), d).double()
    seed_mixer(made, seed=0, std=0.3)
    return made


def canon(h_BTC, taps_CW):
    """The definition, token by token."""
    out = torch.zeros_like(h_BTC)
    for t in range(h_BTC.shape[1]):
        out[:, t] = h_BTC[:, t]
        for lag in range(4):
            if t >= lag:
                out[:, t] += taps_CW[:, 3 - lag] * h_BTC[:, t - lag]
    return out


def test_a_and_c_are_on_the_input():
    x = torch.randn(2, 9, 16, dtype=torch.float64)
    for text in ("gla[heads=2,canon=a]", "mlp[inner=24,canon=c]"):
        made = mixer(text)
        torch.testing.assert_close(made(x), made.mixer(canon(x, made.canon.taps_CW)))


def test_d_is_before_the_nonlinearity():
    x, made = torch.randn(2, 9, 16, dtype=torch.float64), mixer("swiglu[inner=24,canon=d]")
    gate, up = canon(made.gate_up(x), made.canon.taps_CW).chunk(2, dim=-1)
    torch.testing.assert_close(made(x), made.down(torch.nn.functional.silu(gate) * up))


def test_b_is_on_queries_keys_and_values():
    x, made = torch.randn(2, 9, 16, dtype=torch.float64), mixer("attn[heads=2,pos=none,canon=b]")
    q, k, v = canon(made.qkv(x), made.canon.taps_CW).unflatten(-1, (3, 2, 8)).unbind(2)
    seen = torch.nn.functional.scaled_dot_product_attention(*(p.transpose(1, 2) for p in (q, k, v)), is_causal=True)
    torch.testing.assert_close(made(x), made.output(seen.transpose(1, 2).flatten(2)))


def test_taps_of_zero_change_nothing():
    x, made = torch.randn(2, 9, 16, dtype=torch.float64), mixer("linear[heads=2,canon=ab]")
    plain = mixer("linear[heads=2]")
    with torch.no_grad():
        made.canon.taps_CW.zero_()
        made.mixer.canon.taps_CW.zero_()
    plain.load_state_dict({n.removeprefix("mixer."): p for n, p in made.state_dict().items() if "canon" not in n})
    torch.testing.assert_close(made(x), plain(x))


def test_a_crop_goes_back():
    model = build("d=16 vocab=11 | attn[heads=2,canon=ab] swiglu[inner=24,canon=cd]", seed=1).double()
    tokens = torch.randint(11, (2, 12))
    state = model.backbone.init_state(2, rollback=3)
    _, state = model.backbone.extend(tokens, state)
    state = model.backbone.crop(state, 3)
    again, _ = model.backbone.extend(tokens[:, 9:], state)
    torch.testing.assert_close(again, model.backbone(tokens)[:, 9:])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gla[canon=c]", "Allowed: none, a, b, ab"),
        ("mamba2[canon=b]", "Allowed: none, a."),
        ("swiglu[canon=a]", "Allowed: none, c, d, cd"),
        ("attn[canon=a,causal=false]", "does not go with causal=false"),
        ("xl-attn[canon=a]", "no option 'canon'"),
    ],
)
def test_what_is_refused(text, message):
    with pytest.raises(OptionError, match=message):
        options_of(parse(text).layers[0])


def test_a_search_may_choose_it_for_every_mixer_that_has_it():
    rows = {row["option"]: row for row in load("gla").describe()}
    assert rows["canon"]["choices"] == ["none", "ab"]
    assert not load("identity").has("canon")


def test_the_cost_is_four_taps_and_three_inputs_per_channel():
    plain, canon = (model_cost(f"d=64 vocab=8 | gla[expand_v=2{more}] mlp[inner=96{more2}]", seq=50)
                    for more, more2 in (("", ""), (",canon=ab", ",canon=cd")))  # fmt: skip
    channels = 64 + (64 + 64 + 128) + 64 + 96
    assert canon.total_params - plain.total_params == 4 * channels
    assert canon.conv_state - plain.conv_state == 3 * channels
    assert canon.flops - plain.flops == 2 * 50 * 4 * channels
