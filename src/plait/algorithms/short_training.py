"""short_training: minus the loss on a fresh batch after a few steps of AdamW. The dearest proxy, the most direct."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch

from plait.algorithms.proxies import Data, Proxy, cross_entropy
from plait.model.construct import Model


@dataclass(frozen=True)
class ShortTraining(Proxy):
    steps: int = 50
    lr: float = 1e-3

    name = "short_training"

    def score(self, model: Model, data: Data) -> float:
        trained = copy.deepcopy(model).train()
        optimizer = torch.optim.AdamW(trained.parameters(), lr=self.lr, weight_decay=0.0)
        for step in range(self.steps):
            optimizer.zero_grad(set_to_none=True)
            trained.loss(*data(step)).backward()
            optimizer.step()
        with torch.no_grad():
            return -float(cross_entropy(trained.eval(), *data(self.steps)))

    def flops(self, forward: int, batch: int) -> int:
        return (3 * self.steps + 1) * forward
