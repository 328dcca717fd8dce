"""What kernels cannot reach takes the plain form: offsets beyond 32 bits. A batch with more programs than a grid has is
taken in slices."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from plait.ops.channel_delta import channel_delta_path
from plait.ops.delta import delta_path
from plait.ops.gla import gla_takes
from plait.ops.gpu import AMPERE
from plait.ops.stacking import MOST_PROGRAMS, in_batch_slices

#: Sequences, tokens, heads, width, and whether offsets of 31 bits reach all of it.
SIZES = [
    ((8, 4096, 6, 64), True),
    ((8191, 1, 8, 16), True),
    ((8192, 1, 8, 16), True),
    ((1, 1 << 20, 8, 128), True),
    ((1, 1 << 21, 8, 128), False),
]


@pytest.mark.parametrize(("size", "reached"), SIZES)
def test_only_what_is_reached_takes_the_kernels(pretend_gpu, size, reached):
    pretend_gpu(AMPERE)
    with FakeTensorMode():
        x = torch.empty(size, device="cuda", dtype=torch.bfloat16)
        assert gla_takes(x, x, x) is reached
        assert (delta_path(x, x) == "triton") is reached
        assert (channel_delta_path(x, x) == "triton") is reached


def test_a_slice_of_a_wide_projection_reaches_less_far(pretend_gpu):
    pretend_gpu(AMPERE)
    with FakeTensorMode():
        size, stride = (1, 1 << 20, 8, 128), (8 * 384 << 20, 8 * 384, 384, 1)
        dense = torch.empty(size, device="cuda", dtype=torch.bfloat16)
        x = torch.empty_strided(size, stride, device="cuda", dtype=torch.bfloat16)
        assert gla_takes(dense, dense, dense)
        assert not gla_takes(x, x, x)


def test_a_batch_beyond_the_grid_is_taken_in_slices():
    seen = []

    def run(x_BH, z_Z, missing, factor):
        seen.append(x_BH.shape[0] * x_BH.shape[1])
        return factor * x_BH, z_Z.square(), x_BH.new_empty(0)

    x_BH, z_Z = torch.randn(3 * MOST_PROGRAMS // 8, 8), torch.randn(3 * MOST_PROGRAMS // 8 * 8)
    doubled, squared, nothing = in_batch_slices(run, 8, x_BH, z_Z, None, 2.0)
    assert len(seen) == 4
    assert max(seen) <= MOST_PROGRAMS
    assert torch.equal(doubled, 2 * x_BH)
    assert torch.equal(squared, z_Z.square())
    assert nothing.shape == (0,)
