"""Retention against its parallel form, a decayed matrix of scores; lightning attention; decays in half precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.mixers.gla import RetNetOptions
from plait.mixers.gla_module import Retention
from plait.ops.elementwise import rotary_angles, rotate_reference


def attended(mixer: Retention, x: torch.Tensor, decay_H: torch.Tensor, act) -> torch.Tensor:
    """(q kᵀ ∘ γ^(i−j)) v, the norm of each head and the gate."""
    q, k, v, gate = mixer.input(x).split(mixer.splits, dim=-1)
    q, k, v = (act(part.unflatten(-1, (mixer.heads, -1))) for part in (q, k, v))
    if mixer.rotary is not None:
        cos, sin = rotary_angles(torch.arange(x.shape[1]), q.shape[-1], 10000.0, x.dtype)
        q, k = rotate_reference(q, cos, sin), rotate_reference(k, cos, sin)
    place = torch.arange(x.shape[1])
    distance = place[:, None] - place
    decays = torch.where(distance >= 0, decay_H[:, None, None] ** distance.clamp(min=0), 0.0)
    scores = torch.einsum("bihk,bjhk->bhij", q, k) * mixer.key_width**-0.5 * decays
    o = torch.einsum("bhij,bjhv->bihv", scores, v)
    o = o / (o.square().mean(-1, keepdim=True) + 1e-5).sqrt() * mixer.norm.weight
    gate = F.silu(gate) if mixer.out_gate == "silu" else gate.sigmoid()
    return mixer.output(o.flatten(-2) * gate)


def test_forward_is_the_parallel_form_of_the_paper() -> None:
    torch.manual_seed(0)
    mixer = Retention(24, RetNetOptions(heads=3)).double()
    x = torch.randn(2, 40, 24, dtype=torch.float64)
    decay = torch.tensor([1 - 1 / 32, 1 - 1 / 64, 1 - 1 / 128], dtype=torch.float64)
    torch.testing.assert_close(mixer(x), attended(mixer, x, decay, lambda part: part), rtol=1e-6, atol=1e-7)


def test_lightning_attention() -> None:
    torch.manual_seed(0)
    options = RetNetOptions(
        heads=2, head_dim=6, expand_v=1.0, decay="alibi", act="silu", out_gate="sigmoid", pos="none"
    )
    mixer = Retention(8, options).double()
    x = torch.randn(2, 40, 8, dtype=torch.float64)
    decay = torch.exp(-torch.tensor([2.0**-4, 2.0**-8], dtype=torch.float64))
    torch.testing.assert_close(mixer(x), attended(mixer, x, decay, F.silu), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("decay", ["retnet", "alibi"])
def test_decays_stay_exact_in_half_precision(decay: str) -> None:
    whole, half = (Retention(32, RetNetOptions(heads=8, decay=decay)) for _ in range(2))
    half.to(torch.bfloat16)
    torch.testing.assert_close(half.log_decay(), whole.log_decay(), rtol=0, atol=0)
    assert (half.log_decay() < 0).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (RetNetOptions(heads=5), "d=32 is not a multiple of heads=5"),
        (RetNetOptions(heads=2, head_dim=7), "even head width, not 7"),
        (RetNetOptions(heads=4, expand_v=0.3), "is not a multiple of heads=4"),
    ],
)
def test_what_does_not_fit(options: RetNetOptions, message: str) -> None:
    with pytest.raises(UserError, match=message):
        options.check(32)
