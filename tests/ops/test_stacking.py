"""Custom operators under vmap: the replicas of a stack are more rows of the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from plait.ops.stacking import register_stacked


@torch.library.custom_op("plait_test::rolled_sums", mutates_args=())
def rolled_sums(x_BT: Tensor, y_BT: Tensor, shift: int) -> tuple[Tensor, Tensor]:
    return x_BT.roll(shift, 1) + y_BT, x_BT.sum(1)


@torch.library.custom_op("plait_test::doubled", mutates_args=())
def doubled(x_BT: Tensor) -> Tensor:
    return 2 * x_BT


register_stacked(rolled_sums, lambda x, y, shift: (x.new_empty(x.shape), x.new_empty(x.shape[0])))
register_stacked(doubled, lambda x: x.new_empty(x.shape))


def test_members_are_rows_of_the_batch() -> None:
    x_MBT, y_BT = torch.randn(3, 2, 5), torch.randn(2, 5)
    rolled, sums = torch.vmap(lambda x: rolled_sums(x, y_BT, 2))(x_MBT)
    torch.testing.assert_close(rolled, x_MBT.roll(2, 2) + y_BT)
    torch.testing.assert_close(sums, x_MBT.sum(2))
    torch.testing.assert_close(torch.vmap(doubled, in_dims=1)(x_MBT), 2 * x_MBT.movedim(1, 0))


def test_a_compiler_knows_the_shapes() -> None:
    with torch._subclasses.FakeTensorMode():
        rolled, sums = rolled_sums(torch.empty(4, 6), torch.empty(4, 6), 1)
        assert (rolled.shape, sums.shape) == ((4, 6), (4,))
