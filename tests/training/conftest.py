"""A fleet small enough to train in a second."""

from __future__ import annotations

import pytest
import torch

from plait.model.architecture import architecture
from plait.training.ensemble import Fleet, Split
from plait.training.ensemble_plan import Plan, Replica

VOCAB, TOKENS = 7, 12
BODIES = {
    "attn": "(attn[heads=2] swiglu[inner=24])x2",
    "gla": "(gla[heads=2] swiglu[inner=24])x2",
    "mamba": "(mamba[state=2])x2",
    "hyena": "(hyena[state=4] moe[experts=3,active=2,inner=8])x1",
}


def split(examples: int, seed: int, sets: int = 1) -> Split:
    """Every token is its predecessor plus one, with some noise: learnable, but not at once."""
    stream = torch.Generator().manual_seed(seed)
    first = torch.randint(VOCAB, (sets, examples, 1), generator=stream)
    tokens = (first + torch.arange(TOKENS + 1)) % VOCAB
    noisy = torch.rand(tokens.shape, generator=stream) < 0.1
    tokens = torch.where(noisy, torch.randint(VOCAB, tokens.shape, generator=stream), tokens)
    return Split(tokens[..., :-1].contiguous(), tokens[..., 1:].contiguous())


@pytest.fixture(scope="session")
def make_fleet():
    def make(replicas: list[Replica], plan: Plan, body: str = "attn", sets: int = 1) -> Fleet:
        arch = architecture(f"d=16 vocab={VOCAB} | {BODIES[body]}")
        return Fleet(arch, replicas, plan, split(64, 0, sets), split(32, 1, sets), split(32, 2, sets))

    return make
