"""Maps are the op's own weights: rows sum to one, A·V is what the head puts out, F is made of the gates."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.evals.evaluation import Subject
from plait.evals.maps import MapsEvaluation, _input_of, attention_map, forget_matrix, pooled
from plait.model import build
from plait.model.language_model import Encoder, LanguageModel

from .conftest import language_model, text_of

LAYERS = {
    "rotary": "attn[heads=4 kv_heads=2]",
    "window": "attn[heads=4 window=6]",
    "alibi": "attn[heads=4 pos=alibi]",
    "FoX (LLaMA)": "attn[heads=4 forget=full pos=none]",
    "fixed gates": "attn[heads=4 forget=fixed pos=none]",
    "FoX (Pro)": "attn[heads=4 forget=full pos=none kv_shift=true qk_norm=per-head out_gate=true out_norm=true]",
    "relative": "xl-attn[heads=4]",
}


def model_of(layer: str) -> LanguageModel:
    return language_model(f"d=16 vocab=31 | mlp[inner=16] {LAYERS[layer]} mlp[inner=16]")


def heads_put_together(model: LanguageModel, tokens_T: Tensor) -> tuple[Tensor, Tensor]:
    """What layer 1 puts out, and the same from its maps: every head's A·V through the layer's own output map."""
    mixer, seen = model.backbone.blocks[1].mixer, {}
    handle = mixer.register_forward_hook(lambda _, given, out: seen.update(x=given[0], out=out))
    with torch.no_grad():
        model(tokens_T[None])
    handle.remove()
    maps = [attention_map(model, tokens_T, 1, head) for head in range(4)]
    heads_THP = torch.stack([torch.from_numpy(m.attention_TT @ m.values_TP) for m in maps], dim=1)[None]
    with torch.no_grad():
        if getattr(mixer, "output_norm", None) is not None:
            heads_THP = mixer.output_norm(heads_THP)
        flat = heads_THP.flatten(-2)
        if getattr(mixer, "output_gate", None) is not None:
            flat = flat * mixer.output_gate(seen["x"]).sigmoid()
        return seen["out"], mixer.output(flat)


@pytest.mark.parametrize("layer", LAYERS)
def test_the_map_times_the_values_is_the_layers_output(layer: str) -> None:
    model, tokens = model_of(layer), torch.from_numpy(text_of(24).astype(np.int64))
    out, put_together = heads_put_together(model, tokens)
    torch.testing.assert_close(put_together, out, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("layer", LAYERS)
def test_rows_sum_to_one_and_see_no_future(layer: str) -> None:
    found = attention_map(model_of(layer), torch.from_numpy(text_of(24).astype(np.int64)), 1, 3)
    np.testing.assert_allclose(found.attention_TT.sum(axis=1), 1, atol=1e-12)
    assert not np.triu(found.attention_TT, 1).any()
    assert found.attention_TT[0, 0] == 1


def test_the_forget_matrix_is_made_of_the_gates() -> None:
    model, tokens = model_of("FoX (LLaMA)"), torch.from_numpy(text_of(10).astype(np.int64))
    mixer, seen = model.backbone.blocks[1].mixer, []
    handle = mixer.forget_gate.register_forward_hook(lambda *given: seen.append(given[2][0, :, 2].sigmoid()))  # type: ignore[union-attr]
    found = attention_map(model, tokens, 1, 2).forget_TT
    handle.remove()
    gates = seen[0].detach().numpy()
    assert found is not None
    for i in range(10):
        for j in range(10):
            expected = np.prod(gates[j + 1 : i + 1]) if j <= i else 0.0
            assert found[i, j] == pytest.approx(expected, rel=1e-10)


def test_slopes_are_gates_too() -> None:
    found = attention_map(model_of("alibi"), torch.arange(5), 1, 0).forget_TT
    assert found is not None
    np.testing.assert_allclose(found[4], np.exp(-(2.0**-2) * np.arange(4, -1, -1)), rtol=1e-6)
    assert attention_map(model_of("rotary"), torch.arange(5), 1, 0).forget_TT is None


def test_gates_that_have_closed_overflow_nothing() -> None:
    found = forget_matrix(torch.full((50,), -100.0))
    assert np.array_equal(np.diag(found), np.ones(50))
    assert np.isfinite(found).all()
    assert found.sum() == pytest.approx(50)


def test_an_encoder_looks_both_ways() -> None:
    model = build("d=16 vocab=31 kind=encoder | attn[heads=2 causal=false] mlp[inner=16]", dtype=torch.float64)
    assert isinstance(model, Encoder)
    found = attention_map(model, torch.arange(8), 0, 1)
    np.testing.assert_allclose(found.attention_TT.sum(axis=1), 1, atol=1e-12)
    assert np.triu(found.attention_TT, 1).any()


def test_what_is_not_there_is_refused() -> None:
    model = model_of("rotary")
    with pytest.raises(UserError, match="attention layers are 1 "):
        attention_map(model, torch.arange(5), 0, 0)
    with pytest.raises(UserError, match="heads 0 to 3"):
        attention_map(model, torch.arange(5), 1, 4)
    without = language_model("d=16 vocab=31 | gla[heads=2] mlp[inner=16]")
    subject = Subject(without, text_of(20), 16)
    made = MapsEvaluation().resolved(subject)
    with pytest.raises(UserError, match="no attention layer"):
        made.measure(subject)


def test_pooling_keeps_the_peaks() -> None:
    matrix = np.zeros((10, 10))
    matrix[7, 3] = 0.9
    assert pooled(matrix, 5).shape == (5, 5)
    assert pooled(matrix, 5)[3, 1] == 0.9
    assert np.array_equal(pooled(matrix, 20), matrix)


def test_the_evaluation(subject: Subject) -> None:
    made = MapsEvaluation(layer=2).resolved(subject)
    found = made.measure(subject)
    assert [(one["layer"], one["head"]) for one in found["maps"]] == [(2, 0), (2, 1)]
    assert np.shape(found["maps"][0]["attention"]) == (32, 32)
    assert 1 <= found["maps"][0]["memory"] <= 32
    assert len(made.table({"a": found})[1]) == 2
    assert made.figures({"a": found})["maps"].count("<image") == 5  # two heads, F and A, and the ramp
    everything = MapsEvaluation(length=16).resolved(subject).measure(subject)
    assert [(one["layer"], one["head"]) for one in everything["maps"]] == [(0, 0), (0, 1), (2, 0), (2, 1)]


def test_of_two_rows_one_is_sharp() -> None:
    from plait.evals.maps import AttentionMap

    attention = np.array([[1.0, 0.0], [0.5, 0.5]])
    found = AttentionMap(0, 0, attention, np.zeros((2, 1)), None)
    assert found.sharp == 0.5
    assert found.distance == 0.25
    assert found.memory is None


@pytest.mark.parametrize(
    ("layers", "layer"),
    [("attn[heads=4,share=a] mlp attn[heads=4,share=a]", 2), ("attn[heads=4] mlp cross-attn[heads=4]", 0)],
)
def test_a_layer_that_shares_or_lends_has_its_own_map(layers: str, layer: int) -> None:
    """What the block's mixer is given is what its norm gives: computed here by running the blocks before it."""
    model = language_model(f"d=16 vocab=31 | {layers}")
    tokens_T = torch.arange(9) % 31
    with torch.no_grad():
        x_BTD = model.backbone.embedding(tokens_T[None])
        for block in model.backbone.blocks[:layer]:
            x_BTD = block(x_BTD)
        given_BTD = model.backbone.blocks[layer].norm(x_BTD)
        torch.testing.assert_close(_input_of(model, layer, tokens_T), given_BTD)
    assert attention_map(model, tokens_T, layer, 0) is not None
