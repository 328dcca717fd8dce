"""Norms, each against its formula written out."""

from __future__ import annotations

import pytest
import torch

from plait.mixers.mixer import HeadNorm, make_norm

X = torch.randn(3, 5, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def test_rms_and_layer_norm_by_their_formulas() -> None:
    rms, layer = make_norm("rms", 6, 1e-3).double(), make_norm("layer", 6, 1e-3).double()
    with torch.no_grad():
        rms.weight.copy_(torch.arange(1, 7))
        layer.weight.copy_(torch.arange(1, 7))
        layer.bias.copy_(-torch.arange(1, 7))
    weight = torch.arange(1, 7)
    torch.testing.assert_close(rms(X), X / (X.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight)
    centred = X - X.mean(-1, keepdim=True)
    expected = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt() * weight - weight
    torch.testing.assert_close(layer(X), expected)


@pytest.mark.parametrize("shared", [False, True])
def test_head_norm_norms_each_head_by_itself(shared: bool) -> None:
    norm = HeadNorm(4, 6, eps=1e-2, shared=shared).double()
    with torch.no_grad():
        norm.weight.copy_(torch.arange(norm.weight.numel()).view(norm.weight.shape))
    assert norm.weight.shape == ((6,) if shared else (4, 6))
    out = norm(X)
    for head in range(4):
        x = X[:, :, head]
        weight = norm.weight if shared else norm.weight[head]
        torch.testing.assert_close(out[:, :, head], x / (x.square().mean(-1, keepdim=True) + 1e-2).sqrt() * weight)
    louder = X.clone()
    louder[:, :, 0] *= 100
    assert torch.equal(norm(louder)[:, :, 1:], out[:, :, 1:]), "one head's size reaches another"


def test_norms_start_as_plain_normalisation() -> None:
    for norm in (make_norm("rms", 6, 1e-6), make_norm("layer", 6, 1e-6), HeadNorm(4, 6, eps=1e-6)):
        torch.testing.assert_close(norm(X.float()).square().mean(-1), torch.ones(3, 5, 4), atol=1e-4, rtol=0)
