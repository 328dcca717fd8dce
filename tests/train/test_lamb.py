"""LAMB against the algorithm written out in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from plait.train.lamb import Lamb


def reference(p, grads, *, lr, beta1, beta2, eps, decay):
    """You et al. 2020, Algorithm 2, one parameter."""
    mean, square = np.zeros_like(p), np.zeros_like(p)
    for t, g in enumerate(grads, start=1):
        mean = beta1 * mean + (1 - beta1) * g
        square = beta2 * square + (1 - beta2) * g * g
        r = (mean / (1 - beta1**t)) / (np.sqrt(square / (1 - beta2**t)) + eps) + decay * p
        trust = np.linalg.norm(p) / np.linalg.norm(r) if decay and np.linalg.norm(p) else 1.0
        p = p - lr * trust * r
    return p


@pytest.mark.parametrize("decay", [0.0, 0.01])
@pytest.mark.parametrize("start", ["normal", "zero"])
def test_steps_equal_the_algorithm(decay, start):
    stream = np.random.default_rng(0)
    p = stream.normal(size=(5, 3)) * (start == "normal")
    grads = stream.normal(size=(7, 5, 3))
    parameter = torch.nn.Parameter(torch.tensor(p))
    optimizer = Lamb([parameter], lr=0.02, betas=(0.9, 0.99), eps=1e-6, weight_decay=decay)
    for g in grads:
        parameter.grad = torch.tensor(g)
        optimizer.step()
    wanted = reference(p, grads, lr=0.02, beta1=0.9, beta2=0.99, eps=1e-6, decay=decay)
    np.testing.assert_allclose(parameter.detach().numpy(), wanted, rtol=1e-10, atol=1e-12)
