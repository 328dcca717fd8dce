"""The speed of a fleet compared with the plain loop, in one run: many small models in one stacked step, and one model
alone.

The probe's models (two blocks of mixer and SwiGLU 512, four Mamba layers; width 128) on in-context recall's shape. For
each: milliseconds per step of one model in the plain loop (eager, fused AdamW), milliseconds per replica-step of the
fleet, and the difference between the fleet's first loss and the plain loop's after 20 steps.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import torch
from torch import Tensor

from plait.core.errors import UserError, did_you_mean
from plait.model import build
from plait.model.architecture import architecture
from plait.training.ensemble import Fleet, Plan, Replica, Split, data_order
from plait.training.optimizer import decayed_parameters
from plait.training.recipe import Recipe, rate

BODIES = {
    "attn": "(attn[heads=16] swiglu[inner=512])x2",
    "hyena": "(hyena swiglu[inner=512])x2",
    "gla": "(gla[heads=8] swiglu[inner=512])x2",
    "mamba": "(mamba[state=4,conv_bias=false])x4",
    "mh-hyena": "(mh-hyena[heads=16] swiglu[inner=512])x2",
    "moe": "(attn[heads=16] moe[inner=16])x2",
}
TOKENS, VOCAB, BATCH = 128, 16, 128
STEPS = 10_000  # of the schedule
EPOCH = 100  # steps
EARLY = 20  # steps after which losses are compared


@dataclass(frozen=True)
class FleetTiming:
    """`ratio`: how many times as many replica-steps per second the fleet makes as the plain loop."""

    model: str
    replicas: int
    batch: int
    tokens: int
    plain_ms: float
    replica_step_ms: float
    ratio: float
    first_step_seconds: float  # includes compiling, if it compiles
    loss_gap: float


def fleet_body(name: str) -> str:
    if name not in BODIES:
        raise UserError(f"no fleet of '{name}'.{did_you_mean(name, BODIES)} Known: {', '.join(BODIES)}.")
    return BODIES[name]


def fleet_data(device: torch.device, batch: int, tokens: int) -> Split:
    """One epoch of batches. The compared steps must stay within it: the plain loop does not reproduce the fleet's order
    of the next epoch."""
    x = torch.randint(VOCAB, (1, EPOCH * batch, tokens), generator=torch.Generator().manual_seed(0), dtype=torch.int16)
    return Split(x.to(device), x.roll(-1, dims=2).to(device))


def made_fleet(name: str, replicas: int, split: Split, batch: int, device: torch.device) -> Fleet:
    arch = architecture(f"d=128 vocab={VOCAB} | {fleet_body(name)}")
    small = Split(split.inputs_DNT[:, :batch], split.targets_DNT[:, :batch])
    grid = [Replica(lr=1e-3, weight_decay=0.1, seed=seed) for seed in range(replicas)]
    return Fleet(arch, grid, Plan(steps=STEPS, batch=batch), split, small, small, device=str(device))


def plain_loop(name: str, split: Split, steps: int, batch: int, device: torch.device) -> tuple[float, float]:
    """(milliseconds per step, loss after `EARLY` steps) of one model, trained in a plain loop."""
    replica, cuda = Replica(lr=1e-3, weight_decay=0.1, seed=0), device.type == "cuda"
    recipe = Recipe(lr=replica.lr, warmup=0)
    model = build(f"d=128 vocab={VOCAB} | {fleet_body(name)}", seed=0, device=device)
    decayed = decayed_parameters(model)
    groups = [
        {"params": [p for n, p in model.named_parameters() if (n in decayed) == wanted], "weight_decay": decay}
        for wanted, decay in ((True, replica.weight_decay), (False, 0.0))
    ]
    optimizer = torch.optim.AdamW(groups, lr=replica.lr, betas=(0.9, 0.98), fused=cuda)
    examples = split.inputs_DNT.shape[1]
    order = data_order(0, 0, examples).to(device)

    def step(i: int) -> Tensor:
        rows = order[(i * batch) % examples :][:batch]
        for group in optimizer.param_groups:
            group["lr"] = replica.lr * rate(recipe, i, STEPS)
        with torch.autocast(device.type, torch.bfloat16, enabled=cuda):
            loss: Tensor = model.loss(split.inputs_DNT[0, rows].long(), split.targets_DNT[0, rows].long())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    loss = torch.zeros(())
    for i in range(EARLY):
        loss = step(i)
    early = float(loss.detach())
    _wait(device)
    begun = time.perf_counter()
    for i in range(steps):
        step(EARLY + i)
    _wait(device)
    return 1e3 * (time.perf_counter() - begun) / steps, early


def fleet_timing(name: str, *, replicas: int, steps: int, batch: int, tokens: int, device: torch.device) -> FleetTiming:
    split = fleet_data(device, batch, tokens)
    fleet = made_fleet(name, replicas, split, batch, device)
    begun = time.perf_counter()
    fleet.advance(1)
    _wait(device)
    first = time.perf_counter() - begun
    loss = float(fleet.advance(EARLY - 1)[0])
    begun = time.perf_counter()
    fleet.advance(steps)
    _wait(device)
    ms = 1e3 * (time.perf_counter() - begun) / steps / replicas
    plain_ms, plain_loss = plain_loop(name, split, steps, batch, device)
    return FleetTiming(name, replicas, batch, tokens, plain_ms, ms, plain_ms / ms, first, abs(loss - plain_loss))


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
