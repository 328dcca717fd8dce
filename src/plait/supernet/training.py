"""Training a supernet: alternating steps of the weights and of the architecture logits.

A step depends only on the state before it and on its number, as in `plait.training.trainer`: batch, noise, temperature
and learning rate are functions of the number. So a search that was interrupted resumes to the same architecture.

Letters: L layers, K choices of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from plait.core.errors import UserError
from plait.model.backbone import ModelState
from plait.model.language_model import LanguageModel, Objective
from plait.supernet.mixture import EvenDescent, layers_in_turn, mixture, noise, swap_gradient
from plait.supernet.network import Supernet
from plait.supernet.settings import ARCHITECTURE, SWAP, WEIGHTS, Settings, Turns
from plait.training.optimizer import make_optimizer, set_rate, update
from plait.training.recipe import Recipe, rate
from plait.training.trainer import MOST_SKIPPED, Batch, detached, seed_dropout, set_dropout

Arrays = dict[str, NDArray[Any]]
#: The n-th batch of a stage.
Source = Callable[[int], Batch]
_COUNTS = ("step", "changed")


@dataclass(frozen=True)
class Taken:
    step: int
    stage: str
    loss: float


class SupernetTraining:
    """`costs_LK`: the penalty of every choice, as a share of the network's cost (`plait.supernet.loss.cost_shares`)."""

    def __init__(
        self,
        net: Supernet,
        sources: Mapping[str, Source],
        recipe: Recipe,
        settings: Settings,
        *,
        seed: int = 0,
        epoch: int = 1000,
        costs_LK: Tensor | None = None,
        precision: str = "fp32",
    ) -> None:
        self.net, self.sources, self.recipe, self.settings, self.seed = net, sources, recipe, settings, seed
        self.turns = Turns.of(settings, epoch)
        self.device = net.scores_LK.device
        self.costs_LK = None if costs_LK is None else costs_LK.to(self.device)
        set_dropout(net.model, recipe)
        self.objective = Objective(net.model).train()
        self.optimizers = {WEIGHTS: make_optimizer(net.model, recipe), ARCHITECTURE: self._logits_optimizer()}
        # During the warm-up empty layers are not sampled: they have no weights to train, and a layer that is often
        # missing learns to be superfluous.
        empty = [[option is None and any(layer) for option in layer] for layer in net.choices]
        width = net.scores_LK.shape[1]
        self.untrained_LK = torch.tensor([row + [False] * (width - len(row)) for row in empty], device=self.device)
        self.autocast = torch.autocast(self.device.type, torch.bfloat16, enabled=precision == "bf16")
        self.memory: dict[str, ModelState] = {}
        self.step = 0
        self.skipped = {WEIGHTS: 0, ARCHITECTURE: 0}  # steps in a row that came out infinite or NaN
        self.changed = 0  # the logit step at which the most likely architecture last changed

    def _logits_optimizer(self) -> torch.optim.Optimizer:
        of, lr, decay = [self.net.scores_LK], self.settings.lr, self.settings.weight_decay
        if self.settings.architecture == SWAP:
            return EvenDescent(of, lr=lr, weight_decay=decay)
        return torch.optim.Adam(of, lr=lr, betas=(0.5, 0.999), weight_decay=decay)

    # ---- running

    def advance(self) -> Taken:
        """One step of the stage whose turn it is."""
        stage, number = self.turns.stage(self.step), self.turns.before(self.step)
        weights_turn = stage == WEIGHTS
        self.net.model.requires_grad_(weights_turn)
        self.net.scores_LK.requires_grad_(not weights_turn)
        optimizer = self.optimizers[stage]
        if weights_turn:
            set_rate(optimizer, self.recipe.lr * rate(self.recipe, number[stage], self.turns.total[stage]))
        seed_dropout(self.seed, self.step, 0, self.device)
        batch = self.sources[stage](number[stage])
        if not weights_turn and self.settings.architecture == SWAP:
            loss = self._compare(batch, number[stage])
        else:
            self._choose(self.settings.weights if weights_turn else self.settings.architecture)
            loss, memory = self._run(stage, batch)
            self._remember(stage, memory)
            objective = loss if weights_turn or self.costs_LK is None else loss + self._penalty()
            objective.backward()
        before = self.net.best if not weights_turn else ()
        value = float(loss.detach())
        self._update(stage, value)
        self.step += 1
        if not weights_turn and self.net.best != before:
            self.changed = number[ARCHITECTURE] + 1
        return Taken(self.step, stage, value)

    @property
    def temperature(self) -> float:
        settings, total = self.settings, self.turns.total[ARCHITECTURE]
        progress = self.turns.before(self.step)[ARCHITECTURE] / max(1, total)
        return float(settings.start_temperature * (settings.end_temperature / settings.start_temperature) ** progress)

    @property
    def settled(self) -> float:
        """The fraction of the logit steps for which the most likely architecture has not changed."""
        done, total = self.turns.before(self.step)[ARCHITECTURE], self.turns.total[ARCHITECTURE]
        return (done - self.changed) / total if total else 0.0

    @property
    def converged(self) -> bool:
        return self.settings.patience < 1 and self.settled >= self.settings.patience

    @property
    def finished(self) -> bool:
        return self.step >= self.turns.steps or self.converged

    def _choose(self, sampling: str) -> None:
        """Sample the network of this step."""
        logits_LK = self.net.logits_LK
        if self.settings.architecture == SWAP:
            logits_LK = logits_LK / self.temperature
        if sampling == "path" and self.step < self.turns.warmup:
            logits_LK = logits_LK.masked_fill(self.untrained_LK, -torch.inf)
        weights_LK = mixture(logits_LK, self._noise(), self.temperature, sampling)
        if sampling == "path":
            path = weights_LK.detach().argmax(dim=1).tolist()
            self.net.walk(path, weights_LK if weights_LK.requires_grad else None)
        else:
            self.net.mix(weights_LK)

    @torch.no_grad()
    def _compare(self, batch: Batch, number: int) -> Tensor:
        """The loss of a sampled network; the logits' gradient comes from swapping choices in some of its layers."""
        net = self.net
        logits_LK = net.logits_LK / self.temperature  # networks are sampled with these
        path = (logits_LK + self._noise().to(self.device)).argmax(dim=1).tolist()
        layers = layers_in_turn(self.seed, number, len(path), self.settings.swaps)
        after: list[ModelState | None] = []  # memory after the sampled path, which is tried first
        self.objective.eval()  # with dropout, choices would differ by chance
        with net.comparing(path) as walk:

            def loss_of(tried: list[int]) -> Tensor:
                walk(tried)
                loss, memory = self._run(ARCHITECTURE, batch)
                if not after:
                    after.append(memory)
                return loss

            loss, net.scores_LK.grad = swap_gradient(path, layers, logits_LK, loss_of, self._prices())
        self.objective.train()
        self._remember(ARCHITECTURE, after[0])
        return loss

    def _noise(self) -> Tensor:
        return noise(self.seed, self.step, tuple(self.net.scores_LK.shape))

    def _run(self, stage: str, batch: Batch) -> tuple[Tensor, ModelState | None]:
        """The loss of the network as it is set now, and the segment memory after the batch."""
        if self.recipe.memory and (batch.fresh or stage not in self.memory):
            assert isinstance(self.net.model, LanguageModel)
            self.memory[stage] = self.net.model.init_memory(len(batch.tokens_BT), self.recipe.memory)
        with self.autocast:
            loss, memory = self.objective(batch.tokens_BT, batch.targets_BT, self.memory.get(stage))
        return loss, memory

    def _remember(self, stage: str, memory: ModelState | None) -> None:
        if memory is not None:
            self.memory[stage] = detached(memory)

    def _prices(self) -> Tensor:
        """The penalty of every choice, in nats."""
        return torch.zeros_like(self.net.scores_LK) if self.costs_LK is None else self.settings.strength * self.costs_LK

    def _penalty(self) -> Tensor:
        return (self.net.logits_LK.softmax(dim=1) * self._prices()).sum()

    def _update(self, stage: str, loss: float) -> None:
        optimizer = self.optimizers[stage]
        theirs = [p for group in optimizer.param_groups for p in group["params"]]
        _, updated = update(optimizer, theirs, self.recipe.clip, loss)
        self.skipped[stage] = 0 if updated else self.skipped[stage] + 1
        if self.skipped[stage] >= MOST_SKIPPED:
            raise UserError(
                f"the supernet's loss has not been finite for {MOST_SKIPPED} steps of its {stage} up to step "
                f"{self.step}. Try a lower learning rate (now {self.recipe.lr:g})."
            )

    # ---- checkpoints

    def arrays(self) -> Arrays:
        """Everything needed to resume, as plain arrays."""
        tensors = {f"net/{name}": value for name, value in self.net.state_dict().items()}
        for stage, optimizer in self.optimizers.items():
            for at, held in optimizer.state_dict()["state"].items():
                tensors |= {f"{stage}/{at}/{name}": value for name, value in held.items()}
        for stage, memory in self.memory.items():
            tensors[f"memory/{stage}/pos"] = memory.pos_B
            for n, layer in enumerate(memory.layers):
                tensors |= {f"memory/{stage}/{n}/{name}": value for name, value in layer.items()}
        plain = {name: value.detach().cpu().numpy() for name, value in tensors.items()}
        counts = {name: getattr(self, name) for name in _COUNTS} | {f"skipped/{k}": n for k, n in self.skipped.items()}
        return plain | {name: np.array(count) for name, count in counts.items()}

    def restore(self, arrays: Arrays) -> None:
        """Resume from the result of `arrays`."""
        for name in _COUNTS:
            setattr(self, name, int(arrays[name]))
        self.skipped = {stage: int(arrays[f"skipped/{stage}"]) for stage in self.skipped}
        held = {name: torch.from_numpy(value.copy()) for name, value in arrays.items() if name not in _COUNTS}
        self.net.load_state_dict(_under(held, "net/"))
        for stage, optimizer in self.optimizers.items():
            whole = optimizer.state_dict()
            for name, value in _under(held, f"{stage}/").items():
                at, _, key = name.partition("/")
                whole["state"].setdefault(int(at), {})[key] = value
            optimizer.load_state_dict(whole)
        for stage in self.sources:
            mine = {name: value.to(self.device) for name, value in _under(held, f"memory/{stage}/").items()}
            if mine:
                layers = tuple(_under(mine, f"{n}/") for n in range(len(self.net.choices)))
                self.memory[stage] = ModelState(layers, mine["pos"])


def _under(named: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: value for name, value in named.items() if name.startswith(prefix)}
