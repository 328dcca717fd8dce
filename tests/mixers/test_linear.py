"""Linear attention against its definition: a weighted mean over all earlier values."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from plait.core.errors import UserError
from plait.mixers.gla import LinearOptions
from plait.mixers.gla_module import LinearAttention
from plait.ops.linear import FEATURE_MAPS


@pytest.mark.parametrize("normalize", [True, False])
def test_every_output_is_a_weighted_mean_of_earlier_values(normalize: bool) -> None:
    torch.manual_seed(0)
    mixer = LinearAttention(12, LinearOptions(heads=3, normalize=normalize)).double()
    x = torch.randn(2, 9, 12, dtype=torch.float64)
    q, k, v = mixer.qkv(x).view(2, 9, 3, 3, 4).unbind(2)
    weight_BHij = torch.einsum("bihk,bjhk->bhij", F.elu(q) + 1, F.elu(k) + 1).tril()
    weight_BHij = weight_BHij / (weight_BHij.sum(-1, keepdim=True) if normalize else 2)  # 2 is √K
    expected = mixer.output(torch.einsum("bhij,bjhk->bihk", weight_BHij, v).flatten(-2))
    torch.testing.assert_close(mixer(x), expected, rtol=1e-5, atol=1e-6)


def test_every_feature_on_offer_is_known_to_the_op() -> None:
    (feature,) = (row for row in LinearOptions.describe() if row["option"] == "feature")
    assert set(feature["allowed"]) <= set(FEATURE_MAPS)


def test_signed_weights_are_not_normalised() -> None:
    with pytest.raises(UserError, match="normalize=false"):
        LinearOptions(feature="identity").check(64)
    LinearOptions(feature="identity", normalize=False).check(64)


def test_state_is_a_matrix_and_a_sum_a_head() -> None:
    assert LinearOptions(heads=8).cost(128, 1).fixed_state == 8 * (16 * 16 + 16)
    assert LinearOptions(heads=8, normalize=False).cost(128, 1).fixed_state == 8 * 16 * 16
