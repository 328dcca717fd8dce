"""Muon: against its definition written out with singular values, torch's own, and across a kill."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from plait.model import build
from plait.training.checkpoint import newest_checkpoint
from plait.training.distributed import Processes
from plait.training.muon import ADAM_RMS, Muon, orthogonal
from plait.training.optimizer import make_optimizer
from plait.training.recipe import Recipe
from plait.training.resume import restore_trainer, save_trainer
from plait.training.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parent))
from small_job import small_job

ALONE = Processes(0, 1, torch.device("cpu"))


@pytest.mark.parametrize("shape", [(1, 8, 8), (3, 5, 12), (2, 12, 5), (1, 1, 7)])
def test_singular_values_come_near_one_and_their_vectors_stay(shape: tuple[int, int, int]) -> None:
    x = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = orthogonal(x)
    left, values, right = torch.linalg.svd(x, full_matrices=False)
    # In the basis of the given matrix's vectors what comes out is diagonal: the iteration changes values alone.
    inside = left.mT @ found @ right.mT
    diagonal = inside.diagonal(dim1=-2, dim2=-1)
    torch.testing.assert_close(inside, torch.diag_embed(diagonal), atol=1e-9, rtol=0)
    large = values > 0.05 * values.amax(-1, keepdim=True)
    assert ((diagonal[large] > 0.6) & (diagonal[large] < 1.3)).all()


def test_an_update_is_momentum_orthogonalised_and_as_long_as_adamws() -> None:
    stream = torch.Generator().manual_seed(1)
    w = torch.nn.Parameter(torch.randn(6, 10, dtype=torch.float64, generator=stream))
    optimizer = Muon([{"params": [w], "hidden": True}], lr=0.1, momentum=0.9, weight_decay=0.5)
    mean, expected = torch.zeros_like(w), w.detach().clone()
    for _ in range(3):
        w.grad = torch.randn(6, 10, dtype=torch.float64, generator=stream)
        mean = 0.9 * mean + 0.1 * w.grad
        looked_ahead = 0.9 * mean + 0.1 * w.grad
        expected = (1 - 0.1 * 0.5) * expected - 0.1 * ADAM_RMS * 10**0.5 * _iterated(looked_ahead)
        optimizer.step()
        torch.testing.assert_close(w.detach(), expected)


def _iterated(x: torch.Tensor) -> torch.Tensor:
    """On singular values alone: p(s) = 3.4445 s − 4.7750 s³ + 2.0315 s⁵, five times from s / ‖s‖ (Jordan et al.)."""
    left, s, right = torch.linalg.svd(x, full_matrices=False)
    s = s / s.norm()
    for _ in range(5):
        s = 3.4445 * s - 4.7750 * s**3 + 2.0315 * s**5
    return left @ torch.diag(s) @ right


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has no Muon of its own before 2.9")
def test_torchs_own_makes_the_same_updates_but_for_its_half_precision() -> None:
    stream = torch.Generator().manual_seed(2)
    ours, theirs = (torch.nn.Parameter(torch.eye(8, 12)) for _ in range(2))
    mine = Muon([{"params": [ours], "hidden": True}], lr=0.01, momentum=0.95, weight_decay=0.1)
    right = torch.optim.Muon([theirs], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw")
    for _ in range(3):
        ours.grad = torch.randn(8, 12, generator=stream)
        theirs.grad = ours.grad.clone()
        mine.step()
        right.step()
    moved = float((theirs.detach() - torch.eye(8, 12)).norm())
    assert float((ours - theirs).detach().norm()) < 0.03 * moved


def test_the_blocks_matrices_are_muons_and_everything_else_is_adamws() -> None:
    model = build("d=16 vocab=11 | attn[heads=2] gla[heads=2] moe[experts=3,active=2,inner=8]")
    optimizer = make_optimizer(model, Recipe(optimizer="muon"))
    names = {id(p): name for name, p in model.named_parameters()}
    hidden = {names[id(p)] for group in optimizer.param_groups if group["hidden"] for p in group["params"]}
    rest = {names[id(p)] for group in optimizer.param_groups if not group["hidden"] for p in group["params"]}
    assert hidden | rest == set(names.values())
    assert not hidden & rest
    assert {"backbone.blocks.0.mixer.qkv.weight", "backbone.blocks.0.mixer.output.weight"} <= hidden
    assert all(model.get_parameter(name).dim() >= 2 and name.startswith("backbone.blocks.") for name in hidden)
    assert {"output.weight", "backbone.final_norm.weight"} <= rest
    assert any("embedding" in name for name in rest)


def test_what_muon_leaves_to_adamw_moves_as_under_adamw() -> None:
    tokens = torch.arange(22).view(2, 11) % 11
    models = {}
    for name in ("muon", "adamw"):
        model = models[name] = build("d=16 vocab=11 | attn[heads=2]")
        optimizer = make_optimizer(model, Recipe(optimizer=name))
        model.loss(tokens, tokens.roll(1)).backward()
        optimizer.step()
    moved = {name: dict(model.named_parameters()) for name, model in models.items()}
    assert torch.equal(moved["muon"]["output.weight"], moved["adamw"]["output.weight"])
    matrix = "backbone.blocks.0.mixer.qkv.weight"
    assert not torch.equal(moved["muon"][matrix], moved["adamw"][matrix])


def test_a_resumed_training_goes_on_as_if_it_had_not_stopped(tmp_path: Path) -> None:
    job = small_job("moe", optimizer="muon", schedule="wsd")
    whole, part = (Trainer(job, 12, ALONE) for _ in range(2))
    for _ in range(8):
        whole.advance()
    for _ in range(4):
        part.advance()
    save_trainer(part, tmp_path, {})
    resumed = Trainer(job, 12, ALONE)
    saved = newest_checkpoint(tmp_path)
    assert saved is not None
    restore_trainer(resumed, saved)
    losses = [resumed.advance().loss for _ in range(4)]
    assert len(set(losses)) == 4
    for name, value in resumed.weights().items():
        assert torch.equal(value, whole.weights()[name]), name


def test_a_training_with_muon_learns() -> None:
    trainer = Trainer(small_job("attn", steps=40, optimizer="muon"), 40, ALONE)
    losses = [trainer.advance().loss for _ in range(40)]
    assert sum(losses[-5:]) < 0.85 * sum(losses[:5])


def test_recipes_without_muon_keep_their_keys() -> None:
    assert "momentum" not in Recipe().as_dict()
    assert Recipe(optimizer="muon").as_dict()["momentum"] == 0.95
