"""Mamba-3 against the two-term recurrence of the paper, token by token, and what its angles are for."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.mamba import Mamba3Options
from plait.mixers.mamba_module import Mamba3
from plait.model import build
from plait.model.architecture import architecture
from plait.tasks import baseline, draw


def rotated(x: Tensor, angle: Tensor) -> Tensor:
    """Complex numbers out of neighbouring channels, multiplied by exp(i angle); the rest stays."""
    turning = 2 * angle.shape[-1]
    numbers = torch.view_as_complex(x[..., :turning].unflatten(-1, (-1, 2)).contiguous())
    turned = torch.view_as_real(numbers * torch.polar(torch.ones_like(angle), angle)).flatten(-2)
    return torch.cat((turned, x[..., turning:]), dim=-1)


@pytest.mark.parametrize("rank", [1, 3])
@pytest.mark.parametrize(("rotate", "angles"), [(0.0, 0), (0.5, 1), (1.0, 2)])
def test_forward_is_the_recurrence_of_the_paper(rank: int, rotate: float, angles: int) -> None:
    """H = 4 heads of P = 3 in 2 groups, state N = 4."""
    torch.manual_seed(0)
    mixer = Mamba3(6, Mamba3Options(state=4, head_dim=3, groups=2, rotate=rotate, rank=rank)).double()
    with torch.no_grad():
        for parameter in mixer.parameters():
            parameter.normal_(std=0.7)
    x_in = torch.randn(1, 8, 6, dtype=torch.float64)
    sizes = [12, 12, 8 * rank, 8 * rank, 4, 4, 4, angles]
    state, theta = torch.zeros(4, 4, 3, dtype=torch.float64), torch.zeros(4, angles, dtype=torch.float64)
    last, expected = torch.zeros(4, 4, 3, dtype=torch.float64), []
    ones = torch.ones(4, rank, 3, dtype=torch.float64)
    m_in, m_gate, m_out = (
        (mixer.rank_in_HRP, mixer.rank_gate_HRP, mixer.rank_out_HRP) if rank > 1 else (ones, ones, ones)
    )
    for token in x_in[0]:
        z, x, b, c, delta, rate, share, phi = mixer.input(token).split(sizes)
        step = F.softplus(delta + mixer.step_bias_H)
        decay, lam = torch.exp(-F.softplus(rate) * step), share.sigmoid()
        theta = theta + math.pi * torch.tanh(phi) * step[:, None]

        def columns(flat: Tensor, norm: Tensor, bias: Tensor, angle: Tensor) -> Tensor:
            by_group = flat.view(rank, 2, 4)
            by_group = by_group / (by_group.square().mean(-1, keepdim=True) + 1e-5).sqrt() * norm
            by_head = by_group.repeat_interleave(2, dim=1).transpose(0, 1) + bias
            return rotated(by_head, angle[:, None].expand(-1, rank, -1))

        keys = columns(b, mixer.key_norm.weight, mixer.key_bias_HRN, theta)
        queries = columns(c, mixer.query_norm.weight, mixer.query_bias_HRN, theta)
        inputs = x.view(4, 1, 3) * m_in
        write = keys.mT @ inputs
        first, second = ((1 - lam) * step * decay)[:, None, None], (lam * step)[:, None, None]
        state = decay[:, None, None] * state + first * last + second * write
        last = write
        y = queries @ state + mixer.skip_H[:, None, None] * inputs
        expected.append(mixer.output((y * F.silu(z.view(4, 1, 3) * m_gate) * m_out).sum(1).flatten()))
    torch.testing.assert_close(mixer(x_in)[0], torch.stack(expected))


def test_a_state_turned_by_half_a_circle_at_every_one_keeps_their_parity() -> None:
    """Δ = 1 and φ = ±∞ turn by π: the sign of what was written first is the parity of the ones since."""
    mixer = Mamba3(2, Mamba3Options(state=2, head_dim=2, expand=1, rotate=1.0)).double()
    with torch.no_grad():
        mixer.input.weight.zero_()
        mixer.input.weight[-1] = torch.tensor([0.0, 40.0])  # the angle: the second channel is the bit
        mixer.step_bias_H.fill_(math.log(math.e - 1))
    bits = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1, 1])
    x = torch.stack((torch.zeros(10), bits.float()), dim=-1).double()[None]
    angle = mixer.extend(x, mixer.init_state(1))[1]["angle"]
    torch.testing.assert_close(angle.cos(), torch.full((1, 1, 1), (-1.0) ** int(bits.sum()), dtype=torch.float64))


def parity_by_hand(step: float) -> nn.Module:
    """One layer of Mamba-3 and no MLP whose weights were worked out: a zero takes a step Δ = 0, in which nothing turns,
    fades or is written; a one takes Δ = `step`, turns the state by π Δ and writes 1, so that h ← 1 − h. Tokens are
    (1, ±1, 0, 0), of which a row of weights makes any two numbers."""
    model = build(architecture("d=4 vocab=2 | mamba3[state=2,head_dim=4,expand=1,rotate=1]"), seed=0)
    mixer = model.backbone.blocks[0].mixer
    far, one = 40.0, math.log(math.expm1(step))  # softplus, σ and tanh are at their ends at ±40
    # silu(z) = 1, x = 1, Δ, no decay, λ = 1, φ; B and C are their biases
    rows = {0: (1.2784645, 1.2784645), 4: (1, 1), 12: (-far, one), 13: (-far, -far), 14: (far, far), 15: (far, far)}
    with torch.no_grad():
        weights = [part.weight for part in (mixer.input, mixer.output, mixer.key_norm, mixer.query_norm, model.output)]
        for parameter in (*weights, mixer.skip_H, mixer.step_bias_H):
            parameter.zero_()
        for bias in (mixer.key_bias_HRN, mixer.query_bias_HRN):
            bias.copy_(torch.tensor([1.0, 0.0]))
        model.backbone.embedding.tables[0].weight.copy_(torch.tensor([[1.0, 1, 0, 0], [1, -1, 0, 0]]))
        for row, (of_zero, of_one) in rows.items():
            mixer.input.weight[row, :2] = torch.tensor([of_zero + of_one, of_zero - of_one]) / math.sqrt(8)
        mixer.output.weight[2, 0] = 2
        model.output.weight[1] = torch.tensor([-1.0, 0, 1, 0])  # 2 h − 1
    return model


def right_answers(model: nn.Module, tokens: int) -> float:
    examples = draw(baseline("parity").with_settings({"length": str(tokens)}), 0, "train", 64)
    with torch.no_grad():
        found = model(torch.from_numpy(examples.inputs_NT).long()).argmax(-1).numpy()
    return float((found == examples.targets_NT).mean())


def test_one_layer_can_hold_a_parity_of_any_length_and_an_angle_that_is_off_by_one_percent_cannot() -> None:
    """32 tokens to train on would not tell the two apart."""
    assert [right_answers(parity_by_hand(1.0), tokens) for tokens in (32, 2048)] == [1.0, 1.0]
    assert right_answers(parity_by_hand(0.99), 32) == 1.0
    assert right_answers(parity_by_hand(0.99), 256) < 0.7


def test_angles_that_are_held_stay_in_phase() -> None:
    """What reaches an end of the range is exactly 0 or π, for any step: after 5,000 ones as after one."""
    mixer = Mamba3(2, Mamba3Options(state=2, head_dim=2, expand=1, rotate=1.0, turn="held")).double()
    with torch.no_grad():
        mixer.input.weight.normal_()
        mixer.input.weight[-1] = torch.tensor([-3.5, 7.0])  # the first channel is one, the second the bit
    bits = torch.randint(2, (10_000,), generator=torch.Generator().manual_seed(0))
    x = torch.stack((torch.ones(10_000), bits.float()), dim=-1).double()[None]
    angle = mixer.extend(x, mixer.init_state(1))[1]["angle"]
    torch.testing.assert_close(angle.cos(), torch.full((1, 1, 1), (-1.0) ** int(bits.sum()), dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (Mamba3Options(head_dim=48), "expand × d = 64 is not a multiple of head_dim=48"),
        (Mamba3Options(head_dim=32, groups=3), "the 2 heads are not a multiple of groups=3"),
        (Mamba3Options(head_dim=32, rotate=1.5), "rotate=1.5 given, but it is a share"),
    ],
)
def test_what_does_not_fit(options: Mamba3Options, message: str) -> None:
    with pytest.raises(UserError, match=message):
        options.check(32)
