"""LAMB's three variants against what their papers and the public training code state, written out in NumPy."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from plait.model import build
from plait.papers.recipes import RECIPES
from plait.training.distributed import Processes
from plait.training.lamb import Lamb
from plait.training.optimizer import make_optimizer
from plait.training.recipe import Recipe
from plait.training.trainer import Trainer

sys.path.insert(0, str(Path(__file__).parent))
from small_job import small_job

LR, BETA1, BETA2, EPS = 0.02, 0.9, 0.99, 1e-6


def ratio(size, length):
    """φ(‖x‖) / ‖r + λx‖; both codes take 1 where a norm is zero, else a zero tensor could never move."""
    return size / length if size > 0 and length > 0 else 1.0


def algorithm_2(params, grads, decays):
    """You et al. 2020, Algorithm 2: layers are parameter tensors, φ(z) = z."""
    moments = [(np.zeros_like(x), np.zeros_like(x)) for x in params]
    for t, gradient in enumerate(grads, start=1):
        for i, g in enumerate(gradient):
            m, v = moments[i]
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
            moments[i] = m, v
            r = m / (1 - BETA1**t) / (np.sqrt(v / (1 - BETA2**t)) + EPS)
            step = r + decays[i] * params[i]
            params[i] = params[i] - LR * ratio(np.linalg.norm(params[i]), np.linalg.norm(step)) * step
    return params


def transformer_xl_code(params, grads, decays):
    """The public Transformer-XL training: Adam's moments as they are, weight norms clamped to [0, 10]."""
    moments = [(np.zeros_like(x), np.zeros_like(x)) for x in params]
    for gradient in grads:
        for i, g in enumerate(gradient):
            m, v = moments[i]
            m, v = BETA1 * m + (1 - BETA1) * g, BETA2 * v + (1 - BETA2) * g**2
            moments[i] = m, v
            step = m / (np.sqrt(v) + EPS) + decays[i] * params[i]
            size = min(max(np.linalg.norm(params[i]), 0), 10)
            params[i] = params[i] - LR * ratio(size, np.linalg.norm(step)) * step
    return params


def pre_normalised(params, grads, decays):
    """NVLAMB: Algorithm 2 on gradients whose norm over the whole model is at most 1."""
    norms = [np.sqrt(sum((g**2).sum() for g in gradient)) for gradient in grads]
    scaled = [[g / max(1, norm) for g in gradient] for gradient, norm in zip(grads, norms, strict=True)]
    return algorithm_2(params, scaled, decays)


REFERENCES = {"lamb": algorithm_2, "lamb-xl": transformer_xl_code, "nvlamb": pre_normalised}


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("name", REFERENCES)
def test_steps_equal_the_reference(name, decay):
    """A matrix with weight decay, one that is zero, one longer than 10, and a bias, never decayed."""
    stream = np.random.default_rng(0)
    params = [stream.normal(size=(5, 3)), np.zeros((4, 2)), 9 * stream.normal(size=(3, 3)), stream.normal(size=7)]
    assert np.linalg.norm(params[2]) > 10 > np.linalg.norm(params[0])
    # Gradients above and below a norm of 1.
    grads = [[size * stream.normal(size=p.shape) for p in params] for size in (1.0, 0.05, 3.0, 0.01, 1.0, 0.1, 1.0)]
    decays = [decay, decay, decay, 0.0]
    ours = [torch.nn.Parameter(torch.tensor(p)) for p in params]
    groups = [{"params": ours[:3], "weight_decay": decay}, {"params": ours[3:], "weight_decay": 0.0}]
    options = {"lamb": {}, "lamb-xl": {"bias_correction": False, "largest_norm": 10.0}, "nvlamb": {"max_grad_norm": 1}}
    optimizer = Lamb(groups, lr=LR, betas=(BETA1, BETA2), eps=EPS, **options[name])
    for gradient in grads:
        for p, g in zip(ours, gradient, strict=True):
            p.grad = torch.tensor(g)
        optimizer.step()
    for got, wanted in zip(ours, REFERENCES[name](list(params), grads, decays), strict=True):
        np.testing.assert_allclose(got.detach().numpy(), wanted, rtol=1e-9, atol=1e-12)


def test_the_variants_differ():
    stream = np.random.default_rng(1)
    params, grads = [9 * stream.normal(size=(4, 4))], [[stream.normal(size=(4, 4))] for _ in range(3)]
    ends = [reference(list(params), grads, [0.01])[0] for reference in REFERENCES.values()]
    for i in range(3):
        for j in range(i):
            assert np.abs(ends[i] - ends[j]).max() > 1e-6


@pytest.mark.parametrize(
    ("recipe", "optimizer"),
    [
        *((name, "lamb-xl") for name in ("lts-xl-wt103", "lts-gpt2-wt103", "lts-gpt2-lm1b")),
        *((name, "lamb-xl") for name in ("par-base", "par-search", "par-large", "par-24b")),
        *((name, "nvlamb") for name in ("bert-phase1", "bert-phase2")),
    ],
)
def test_recipes_step_by_a_share_of_the_weights(recipe, optimizer):
    """Whatever the weight decay, every tensor that is not zero moves by lr times its norm (10 at most)."""
    chosen = RECIPES[recipe].recipe
    assert chosen.optimizer == optimizer
    model = build("d=16 vocab=64 | attn[heads=2] mlp[inner=24]", seed=3)
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    made = make_optimizer(model, chosen)
    model.loss(torch.arange(32).reshape(2, 16), torch.arange(1, 33).reshape(2, 16)).backward()
    made.step()
    for name, p in model.named_parameters():
        moved, size = float((p.detach() - before[name]).norm()), float(before[name].norm())
        if not size:
            continue
        assert moved == pytest.approx(chosen.lr * min(size, 10 if optimizer == "lamb-xl" else size), rel=1e-4), name


def test_without_weight_decay_it_is_not_adam():
    """The gap of a training by LAMB to one by Adam, which once was 3e-7 after five steps."""

    def after(optimizer):
        trainer = Trainer(small_job(steps=5, warmup=0, weight_decay=0.0, optimizer=optimizer), 5, Processes(
            0, 1, torch.device("cpu")))  # fmt: skip
        for _ in range(5):
            trainer.advance()
        return torch.cat([p.detach().flatten() for p in trainer.model.parameters()])

    assert float((after("lamb") - after("adam")).abs().max()) > 1e-3


def test_a_new_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="nvlamb"):
        Recipe(optimizer="nvlam")
