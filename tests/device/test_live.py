"""Bytes of tensors, counted."""

from __future__ import annotations

import torch

from plait.device.archai import LiveTensors

KB = 1024


def ones(kilobytes: int) -> torch.Tensor:
    return torch.ones(kilobytes * KB // 4)


def test_peak_and_sum() -> None:
    with torch.inference_mode(), LiveTensors() as tensors:
        a = ones(8)
        b = a + 1  # 16 alive
        del a
        c = b * 2  # 16 alive
        del b, c
        d = ones(4)
    assert tensors.peak == 16 * KB
    assert tensors.made == 28 * KB
    assert tensors.live == d.nbytes


def test_views_and_changes_in_place_are_nothing_new() -> None:
    given = ones(8)
    with torch.inference_mode(), LiveTensors() as tensors:
        view = given.view(2, -1)
        view.add_(1)
        view.mT[0].relu_()
    assert tensors.made == 0


def test_it_sees_inside_of_modules() -> None:
    x, layer = torch.ones(4, 64), torch.nn.Linear(64, 256)
    with torch.inference_mode(), LiveTensors() as tensors:
        torch.relu(layer(x))
    assert tensors.peak == 2 * 4 * 256 * 4
