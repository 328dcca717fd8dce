"""Rotary positions: a complex rotation, so that scores depend on distances alone."""

from __future__ import annotations

import pytest
import torch

from plait.mixers.rotary import Rotary
from plait.ops.elementwise import rotary_angles
from plait.ops.elementwise import rotate as turn


def rotate(x: torch.Tensor, positions: torch.Tensor, theta: float) -> torch.Tensor:
    return turn(x, *rotary_angles(positions, x.shape[-1], theta, x.dtype))


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("width", [2, 6, 64])
def test_it_is_multiplication_by_a_complex_phase(width: int, theta: float) -> None:
    x, positions = draw(2, 9, 3, width), torch.arange(9)
    pairs = torch.complex(x[..., : width // 2], x[..., width // 2 :])
    frequency = torch.tensor([theta ** (-2 * i / width) for i in range(width // 2)], dtype=torch.float64)
    turned = pairs * torch.exp(1j * positions[:, None, None] * frequency)
    torch.testing.assert_close(rotate(x, positions, theta), torch.cat([turned.real, turned.imag], dim=-1))


def test_scores_depend_on_the_distance_alone() -> None:
    q, k = draw(1, 1, 2, 16), draw(1, 1, 2, 16, seed=1)

    def score(at: int, back: int) -> torch.Tensor:
        return (rotate(q, torch.tensor([at]), 100.0) * rotate(k, torch.tensor([at - back]), 100.0)).sum(-1)

    torch.testing.assert_close(score(5, 3), score(1005, 3))
    assert not torch.allclose(score(5, 3), score(5, 4))


def test_position_zero_and_lengths_are_left_alone() -> None:
    x = draw(1, 7, 2, 8)
    turned = rotate(x, torch.arange(7), 10000.0)
    assert torch.equal(turned[:, 0], x[:, 0])
    torch.testing.assert_close(turned.norm(dim=-1), x.norm(dim=-1))


def test_every_row_may_stand_elsewhere() -> None:
    x, starts = draw(3, 4, 2, 8), torch.tensor([0, 5, 90])
    together = rotate(x, starts[:, None] + torch.arange(4), 10000.0)
    for row, start in enumerate(starts.tolist()):
        alone = rotate(x[row : row + 1], torch.arange(start, start + 4), 10000.0)
        torch.testing.assert_close(together[row : row + 1], alone)


def test_half_precision_tells_far_neighbours_apart() -> None:
    x = draw(1, 1, 1, 8).half()
    far = [rotate(x, torch.tensor([100_000 + i]), 10000.0) for i in range(2)]
    exact = [rotate(x.double(), torch.tensor([100_000 + i]), 10000.0) for i in range(2)]
    assert far[0].dtype == torch.float16
    for rounded, wanted in zip(far, exact, strict=True):
        torch.testing.assert_close(rounded.double(), wanted, atol=0.02, rtol=0)
    assert not torch.equal(*far)


def test_remembered_angles_are_the_right_ones_at_every_length_and_dtype() -> None:
    rotary = Rotary(8, 10000.0)
    for tokens in (3, 9, 5):
        for dtype in (torch.float32, torch.float64):
            x = draw(2, tokens, 3, 8).to(dtype)
            torch.testing.assert_close(rotary(x), rotate(x, torch.arange(tokens), 10000.0))
            torch.testing.assert_close(
                rotary(x, 4 + torch.arange(tokens)), rotate(x, 4 + torch.arange(tokens), 10000.0)
            )
