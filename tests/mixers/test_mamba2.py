"""Mamba-2 against Hugging Face's, weight for weight; its initial values; the size the FoX paper prints."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from plait.core.errors import UserError
from plait.mixers.mamba import Mamba2Options
from plait.model import build
from plait.model.cost import model_cost


def theirs(groups: int) -> nn.Module:
    """A small model with every parameter drawn at random, the constant ones too."""
    from transformers import Mamba2Config, Mamba2ForCausalLM

    config = Mamba2Config(
        num_heads=4,
        head_dim=16,
        vocab_size=31,
        hidden_size=32,
        state_size=8,
        num_hidden_layers=2,
        layer_norm_epsilon=1e-5,
        expand=2,
        conv_kernel=4,
        n_groups=groups,
        chunk_size=8,
        tie_word_embeddings=False,
        use_cache=False,
    )
    torch.manual_seed(0)
    model = Mamba2ForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(std=0.3)
    return model


@torch.no_grad()
def copied(source: nn.Module, groups: int) -> nn.Module:
    """Our model with their weights."""
    text = f"d=32 vocab=31 eps=1e-5 | (mamba2[state=8,head_dim=16,groups={groups}])x2"
    model = build(text)
    model.backbone.embedding.tables[0].weight.copy_(source.backbone.embeddings.weight)
    model.backbone.final_norm.weight.copy_(source.backbone.norm_f.weight)
    model.output.weight.copy_(source.lm_head.weight)
    for block, layer in zip(model.backbone.blocks, source.backbone.layers, strict=True):
        ours, other = block.mixer, layer.mixer
        block.norm.weight.copy_(layer.norm.weight)
        ours.input.weight.copy_(other.in_proj.weight)
        ours.taps_CW.copy_(other.conv1d.weight[:, 0])
        ours.taps_bias_C.copy_(other.conv1d.bias)
        ours.log_rate_H.copy_(other.A_log)
        ours.step_bias_H.copy_(other.dt_bias)
        ours.skip_H.copy_(other.D)
        ours.norm.weight.copy_(other.norm.weight)
        ours.output.weight.copy_(other.out_proj.weight)
    return model


@pytest.mark.parametrize("groups", [1, 2])
def test_logits_equal_hugging_faces(groups: int) -> None:
    source = theirs(groups)
    tokens = torch.randint(31, (2, 21), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = source(tokens).logits
        logits = copied(source, groups)(tokens)
    assert expected.std() > 0.1
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_initial_rates_and_steps_fill_the_authors_ranges() -> None:
    mixer = build("d=512 vocab=8 | mamba2[head_dim=4,state=4]").backbone.blocks[0].mixer
    rates, steps = mixer.log_rate_H.exp(), nn.functional.softplus(mixer.step_bias_H)
    assert rates.shape == (256,)
    assert 1 <= rates.min() < 1.5
    assert 15.5 < rates.max() <= 16
    assert steps.min() * (1 + 1e-4) >= 1e-3
    assert steps.min() < 1.2e-3
    assert 0.08 < steps.max() <= 0.1 * (1 + 1e-4)
    assert 0.007 < steps.log().mean().exp() < 0.0143  # even in the logarithm: the middle is 10⁻²
    assert not torch.allclose(rates.argsort().float(), steps.argsort().float())


def test_parameters_as_the_fox_paper_prints_them() -> None:
    """Arxiv 2503.02130, Table 6: 780M."""
    cost = model_cost("d=1536 vocab=50257 | (mamba2[state=128,head_dim=64])x48")
    assert cost.params_without_input_embedding // 10**6 == 780


def test_sizes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(UserError, match="expand × d = 96 is not a multiple of head_dim=64"):
        Mamba2Options().check(48)
    with pytest.raises(UserError, match="the 4 heads are not a multiple of groups=3"):
        Mamba2Options(groups=3).check(128)
