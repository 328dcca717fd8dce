"""Mamba against Hugging Face's implementation, and its initial values."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.mixers.mamba import MambaOptions
from plait.mixers.mamba_module import Mamba
from plait.model import build
from plait.model.architecture import architecture


def test_equals_hugging_face() -> None:
    from transformers import MambaConfig
    from transformers.models.mamba.modeling_mamba import MambaMixer

    d = 24
    config = MambaConfig(hidden_size=d, state_size=6, conv_kernel=4, expand=2, num_hidden_layers=1, use_bias=True)
    torch.manual_seed(0)
    theirs = MambaMixer(config, layer_idx=0).eval()
    ours = Mamba(d, MambaOptions(state=6, bias=True))
    pairs = {
        ours.input_gate: theirs.in_proj,
        ours.selection: theirs.x_proj,
        ours.step_size: theirs.dt_proj,
        ours.output: theirs.out_proj,
    }
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        for mine, other in pairs.items():
            mine.load_state_dict(other.state_dict())
        ours.taps_EW.copy_(theirs.conv1d.weight[:, 0])
        ours.taps_bias_E.copy_(theirs.conv1d.bias)
        ours.log_A_EN.copy_(theirs.A_log)
        ours.D_E.copy_(theirs.D)
    x = torch.randn(2, 37, d)
    torch.testing.assert_close(ours(x), theirs(x), atol=2e-5, rtol=2e-5)
    assert sum(p.numel() for p in ours.parameters()) == sum(p.numel() for p in theirs.parameters())


def test_initial_values_are_the_papers() -> None:
    model = build("d=64 vocab=8 | mamba", seed=1)
    mixer = model.backbone.blocks[0].mixer
    torch.testing.assert_close(-mixer.log_A_EN.exp(), -torch.arange(1.0, 17).expand(128, 16))
    assert (mixer.D_E == 1).all()
    step = F.softplus(mixer.step_size.bias)
    assert (step > 0.999e-3).all()
    assert (step < 0.1001).all()
    # Log-uniform: each decade holds about half of the channels.
    assert 0.35 < (step < 1e-2).float().mean() < 0.65
    again = build("d=64 vocab=8 | mamba", seed=1).backbone.blocks[0].mixer
    other = build("d=64 vocab=8 | mamba", seed=2).backbone.blocks[0].mixer
    assert torch.equal(step, F.softplus(again.step_size.bias))
    assert not torch.equal(step, F.softplus(other.step_size.bias))


def test_long_memory_survives_half_precision_weights() -> None:
    mixer = Mamba(16, MambaOptions()).bfloat16()
    assert mixer.init_state(1)["scan"].dtype == torch.float32


def test_widths() -> None:
    assert MambaOptions().rank(128) == 8
    assert MambaOptions().rank(130) == 9
    assert MambaOptions(expand=1.5).inner_width(128) == 192
    with pytest.raises(UserError, match="not a whole width"):
        architecture("d=100 vocab=8 | mamba[expand=1.255]")
