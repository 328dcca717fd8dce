"""What is run is what a model computes."""

from __future__ import annotations

import pytest
import torch

from plait.core.errors import UserError
from plait.device.quantities import Setting
from plait.device.workload import Layers, Workload, threads
from plait.mixers.table import load
from plait.model import build
from plait.model.architecture import Architecture, architecture
from plait.spec import Header

SPEC = "d=32 vocab=50 | attn[heads=2] mlp mamba[state=4]"


def test_prefill_scores_every_token_and_fills_the_state() -> None:
    work = Workload(architecture(SPEC), Setting(seq=9, batch=2))
    with torch.inference_mode():
        scores, state = work.run()
        torch.testing.assert_close(scores, work.model(work.tokens_BT))
    assert state is not None
    assert state.pos_B.tolist() == [9, 9]


def test_decoding_repeats_the_same_step() -> None:
    work = Workload(architecture(SPEC), Setting(mode="decode", seq=9))
    with torch.inference_mode():
        (first, _), (second, state) = work.run(), work.run()
    torch.testing.assert_close(first, second)
    assert first.shape == (1, 50)
    assert state is not None
    assert state.pos_B.tolist() == [10]


def test_an_encoder_has_no_state() -> None:
    encoder = architecture("d=32 vocab=50 kind=encoder | attn[heads=2,causal=false]")
    assert Workload(encoder, Setting(seq=5)).run()[1] is None
    with pytest.raises(UserError, match="cannot decode"):
        Workload(encoder, Setting(mode="decode", seq=5))


def test_more_tokens_than_positions() -> None:
    short = architecture("d=32 vocab=50 pos=learned max_len=8 | attn[heads=2]")
    Workload(short, Setting(seq=8))
    with pytest.raises(UserError, match="9 tokens asked for"):
        Workload(short, Setting(mode="decode", seq=8))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_no_gpu() -> None:
    with pytest.raises(UserError, match="no GPU"):
        Workload(architecture(SPEC), Setting(device="cuda"))


@pytest.mark.parametrize("name", ["attn", "mlp", "mamba"])
def test_layers_in_a_row_are_layers_of_a_model(name: str) -> None:
    layers = Layers(32, load(name)(), "layer", Setting(seq=6), copies=3)
    weights = {next(block.parameters()).data_ptr() for block in layers.blocks}
    assert len(weights) == 3, "every layer must fetch its own weights"
    with torch.inference_mode():
        y_BTD, states = layers.run()
        x_BTD = layers.x_BTD
        for block in layers.blocks:
            x_BTD = block(x_BTD)
    torch.testing.assert_close(y_BTD, x_BTD)
    assert len(states) == 3


def test_a_step_of_layers_continues_after_the_context() -> None:
    decode = Layers(32, load("attn")(), "rms", Setting(mode="decode", seq=6), copies=1)
    with torch.inference_mode():
        y_BD, (state,) = decode.run()
    assert y_BD.shape == (1, 32)
    assert state["k"].shape[1] == 7


def test_layers_that_see_both_ways() -> None:
    layers = Layers(32, load("attn")(causal=False), "rms", Setting(seq=6), copies=2)
    with torch.inference_mode():
        assert layers.run()[0].shape == (1, 6, 32)


@pytest.mark.parametrize("mode", ["prefill", "decode"])
@pytest.mark.parametrize("name", ["cross-attn", "gmu"])
def test_a_layer_that_reads_an_earlier_one_runs_as_behind_it(
    name: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = load(name)()
    layers = Layers(32, options, "rms", Setting(mode=mode, seq=6), copies=1)
    arch = Architecture(Header(d=32, vocab=2, norm="rms"), (options.lender(), options))
    backbone = build(arch).eval().backbone
    backbone.final_norm = torch.nn.Identity()
    tokens_BT = torch.zeros(1, 6, dtype=torch.long)
    with torch.inference_mode():
        for weight in next(iter(backbone.blocks)).mixer.residual_weights():
            weight.zero_()  # the earlier layer adds nothing to the stream: both get the same vectors
        monkeypatch.setattr(backbone, "embed", lambda *_: layers.x_BTD)
        expected, state = backbone.extend(tokens_BT, backbone.init_state(1))
        if mode == "decode":
            monkeypatch.setattr(backbone, "embed", lambda *_: layers.x_BTD[:, -1:])
            expected, _ = backbone.step(tokens_BT[:, -1], state)
        torch.testing.assert_close(layers.run()[0], expected)


def test_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    with threads(Setting(threads=before + 1)):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before
