"""Decoding in buffers: the same logits as step by step, for every mixer, across moves into larger ones and padding."""

from __future__ import annotations

import pytest
import torch

from plait.mixers.table import MIXERS
from plait.model import build, decoding
from plait.model.decoding import Decoder, decodes, rounded
from plait.model.generation import prefill
from plait.model.language_model import LanguageModel

SMALL = {"hgrn2": "head_dim=8", "deltanet": "head_dim=8", "kda": "head_dim=8", "gated-deltanet": "head_dim=8",
         "rwkv6": "head_dim=8", "rwkv7": "head_dim=8", "mamba2": "state=4,head_dim=8", "deltaproduct": "head_dim=8",
         "mamba3": "state=4,head_dim=8", "attn": "heads=2", "fox": "heads=2,kv_shift,qk_norm=per-head",
         "mla": "heads=2", "xl-attn": "heads=2", "retnet": "heads=2",
         "zamba2": "state=4,head_dim=8,heads=2,inner=16"}  # fmt: skip
SPECS = {name: f"{name}[{SMALL[name]}]" if name in SMALL else name for name in sorted(MIXERS.names())} | {
    "cross-attn": "attn[heads=2] cross-attn[heads=2]",
    "gmu": "mamba gmu",
    "window": "attn[heads=2,window=5]",
    "window larger than the buffers": "attn[heads=2,window=15]",
    "window of relative positions": "xl-attn[heads=2,window=5]",
    "alibi": "attn[heads=2,pos=alibi]",
    "sinks": "attn[heads=2,sinks]",
    "groups": "attn[heads=4,kv_heads=2]",
}


#: Their caches grow, and have neither a form with room nor take padding: generated from states that are made anew.
UNBUFFERED = ("parallel", "sparse-attn")


@pytest.fixture(autouse=True)
def _small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "SMALLEST", 8)


def model_of(layer: str) -> LanguageModel:
    width = 128 if layer in UNBUFFERED else 16  # as wide as their heads are by default
    model = build(f"d={width} vocab=11 | {layer} swiglu[inner=16]", seed=3).double().eval()
    assert isinstance(model, LanguageModel)
    return model


@torch.no_grad()
@pytest.mark.parametrize("name", SPECS)
def test_logits_are_those_of_steps(name: str) -> None:
    model = model_of(SPECS[name])
    if name in UNBUFFERED:
        assert not decodes(model)
        return
    assert decodes(model)
    tokens_BT = torch.randint(11, (2, 24), generator=torch.Generator().manual_seed(0))
    _, state = model.extend(tokens_BT[:, :3], model.init_state(2))
    kept = [{key: value.clone() for key, value in layer.items()} for layer in state.layers]
    decoder = Decoder(model, state)
    given = state
    for t in range(3, 24):
        right, state = model.step(tokens_BT[:, t], state)
        torch.testing.assert_close(decoder.step(tokens_BT[:, t]), right, rtol=1e-9, atol=1e-10)
    assert decoder.held in (None, 24)
    for layer, before in zip(given.layers, kept, strict=True):
        assert all(torch.equal(layer[key], before[key]) for key in before)


@torch.no_grad()
@pytest.mark.parametrize("layer", ["attn[heads=2]", "fox[heads=2]", "mla[heads=2]", "xl-attn[heads=2]"])
def test_rows_that_begin_with_padding(layer: str) -> None:
    model = model_of(layer)
    tokens_BT = torch.randint(11, (2, 20), generator=torch.Generator().manual_seed(1))
    _, state = prefill(model.backbone, tokens_BT[:, :4], torch.tensor([0, 2]))
    decoder = Decoder(model, state)
    for t in range(4, 20):
        right, state = model.step(tokens_BT[:, t], state)
        torch.testing.assert_close(decoder.step(tokens_BT[:, t]), right, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("tokens", "size"), [(1, 8), (8, 8), (9, 12), (13, 16), (17, 24), (100, 128)])
def test_buffers_are_a_power_of_two_or_half_as_much_again(tokens: int, size: int) -> None:
    assert rounded(tokens) == size


@pytest.mark.parametrize("layer", ["gla[heads=2]", "mamba2[head_dim=32]", "hgrn2[head_dim=32]", "rwkv6[head_dim=32]"])
@torch.no_grad()
def test_a_half_precision_model_steps_with_its_wider_state(layer: str) -> None:
    """Its state is kept in fp32; a step gives what reading all at once gives."""
    model = build(f"d=64 vocab=41 | {layer} swiglu", device="cpu", dtype=torch.float16).eval()
    assert isinstance(model, LanguageModel)
    tokens_BT = torch.arange(12)[None]
    _, state = model.backbone.extend(tokens_BT[:, :11], model.init_state(1))
    logits_BV, _ = model.step(tokens_BT[:, 11], state)
    wide = build(f"d=64 vocab=41 | {layer} swiglu", device="cpu").eval()
    wide.load_state_dict(model.state_dict())
    torch.testing.assert_close(logits_BV.float(), wide(tokens_BT)[:, -1], atol=2e-2, rtol=2e-2)
