"""The fleet: many small models of one shape trained as one stacked step.

Replicas differ in learning rate, weight decay, seed (initial weights and data order) and data set. Their parameters are
stacked along a first dimension, and one `vmap` over gradients trains them all, so any mixer that passes `plait check`
works. A replica that has stopped (solved, or by another rule of its plan) is removed from the stack.

On a GPU the whole step, including the optimizer, is compiled and replayed as a CUDA graph: nothing in it waits for the
host. A short training is captured without compiling, which would take longer than the training itself.

Letters: M replicas, D data sets, N examples, B batch, T time, V vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypedDict

import numpy as np
import torch
from torch import Tensor

from plait.model import build
from plait.model.architecture import Architecture
from plait.model.language_model import IGNORE, LanguageModel
from plait.ops.paths import autocast_on
from plait.training.ensemble_plan import RUNNING, Plan, Replica, ReplicaRecord, SavedRecord
from plait.training.ensemble_step import AdamW, Batch, Stepper, Tensors, stack_models, zeros_like
from plait.training.optimizer import decayed_parameters

#: If less than this fraction of all positions is scored, the loss is computed at these positions only, padded to a
#: multiple of `SCORED_MULTIPLE`: settings that differ by a few scored positions then share a shape and a compiled
#: graph.
SCORED_SHARE, SCORED_MULTIPLE = 0.5, 16
SCORED_NUMBERS = 2**28  # numbers in the widest activation when a GPU scores many sequences at once
#: Tokens × parameters for which recording a step of fewer replicas repays: five seconds of an H200, as recording takes
#: where a step of that shape was compiled before.
RECORDED_MEANWHILE = 2**46

#: Accuracy of (N, T) predictions given (N, T) targets; a position whose target is `IGNORE` is not scored.
Metric = Callable[[np.ndarray, np.ndarray], float]


@dataclass(frozen=True)
class Split:
    """Examples of several data sets of one shape: (D, N, T) token ids, and targets with `IGNORE` where unscored."""

    inputs_DNT: Tensor
    targets_DNT: Tensor
    allowed_DNTK: Tensor | None = None  # all correct answers, if there are several; the target is one of them


Report = Callable[["Fleet"], None]


class FleetState(TypedDict):
    """Everything that `Fleet.restore` needs."""

    tensors: Tensors
    step: int
    alive: list[int]
    seconds: float
    records: list[SavedRecord]


class Fleet:
    def __init__(
        self,
        arch: Architecture,
        replicas: Sequence[Replica],
        plan: Plan,
        train: Split,
        validation: Split,
        test: Split,
        *,
        device: torch.device | str = "cpu",
        metric: Metric | None = None,
        others: Mapping[str, Split] | None = None,
    ) -> None:
        """`metric` defines accuracy; None: the fraction of scored positions that are correct. When replicas stop, they
        are also scored on the splits `others`, as on the test split."""
        self.metric = metric
        self.arch, self.plan, self.device = arch, plan, torch.device(device)
        self.records = [ReplicaRecord(replica) for replica in replicas]
        self.alive = list(range(len(replicas)))
        self.step = 0
        self.seconds = 0.0
        self.splits = {name: _on(split, self.device) for name, split in _named(train, validation, test)}
        self.others = tuple(others or {})
        self.splits |= {name: _on(split, self.device) for name, split in (others or {}).items()}
        self._scored = None if plan.curriculum else scored_positions(self.splits["train"].targets_DNT)
        models = [build(arch, seed=replica.seed, device=self.device) for replica in replicas]
        self.template, self.params = stack_models(models)
        self.decayed = decayed_parameters(self.template)
        self.first, self.second = zeros_like(self.params), zeros_like(self.params)
        # A tensor, so that fleets of one shape share a compiled graph, whatever their number of steps.
        self._steps = torch.tensor(float(plan.steps), device=self.device)
        self._learnt = torch.tensor(0, device=self.device)  # scored tokens of a sequence
        self._stepper: Stepper = self._make_stepper()
        self._orders: dict[int, Tensor] = {}

    @property
    def optimizer(self) -> AdamW:
        return self.plan.optimizer

    @property
    def replicas(self) -> list[Replica]:
        return [self.records[i].replica for i in self.alive]

    def run(self, *, until: int | None = None, report: Report | None = None) -> list[ReplicaRecord]:
        """Train to the end of the plan (or to step `until`) with its evaluations, then score on the test split."""
        end = self.plan.steps if until is None else min(until, self.plan.steps)
        started = time.perf_counter()
        while self.alive and self.step < end:
            evaluation = self.plan.next_evaluation(self.step)
            losses_M = self.advance(min(end, evaluation) - self.step)
            self.seconds += time.perf_counter() - started
            started = time.perf_counter()
            if self.step == evaluation:
                self._evaluate(losses_M)
            if report is not None:
                report(self)
        if self.step >= self.plan.steps:
            self._finish(dict.fromkeys(self.alive, "done"))
        self.seconds += time.perf_counter() - started
        return self.records

    def advance(self, steps: int) -> Tensor:
        loss_M = torch.zeros(len(self.alive), device=self.device)
        for _ in range(steps):
            self._learnt.fill_(self.plan.tokens_at(self.step) or self.splits["train"].inputs_DNT.shape[2])
            loss_M = self._stepper(self._batch_rows(self.step))
            self.step += 1
        return loss_M

    def _batch_rows(self, step: int) -> Tensor:
        """Indices of the examples that every replica sees at a step, (M, B): each epoch is a permutation drawn from the
        replica's seed, and its last batch is filled up from the start of the permutation."""
        size = self.splits["train"].inputs_DNT.shape[1]
        batch = min(self.plan.batch, size)
        epoch, place = divmod(step, -(-size // batch))
        if epoch not in self._orders:
            orders = [data_order(replica.seed, epoch, size) for replica in self.replicas]
            self._orders = {epoch: torch.stack(orders).to(self.device)}
        places = (place * batch + torch.arange(batch, device=self.device)) % size
        return self._orders[epoch][:, places]

    def _evaluate(self, losses_M: Tensor) -> None:
        accuracy_M, loss_M, _ = self.score("validation")
        for place, i in enumerate(self.alive):
            if self.records[i].stopped == RUNNING:  # a captured graph keeps training the others
                self.records[i].add(self.step, float(losses_M[place]), float(accuracy_M[place]), float(loss_M[place]))
        self._finish(self.plan.stops(self.records))
        self._compact()

    def _finish(self, reasons: Mapping[int, str]) -> None:
        """Score running replicas on the test split and mark them stopped; `reasons` by the index of their records."""
        stopping = {place: self.records[i] for place, i in enumerate(self.alive) if i in reasons}
        stopping = {place: record for place, record in stopping.items() if record.stopped == RUNNING}
        if not stopping:
            return
        accuracy_M, loss_M, exact_M = self.score("test")
        for place, record in stopping.items():
            record.steps, record.stopped = self.step, reasons[self.alive[place]]
            record.test = (float(accuracy_M[place]), float(loss_M[place]))
            record.exact["test"] = float(exact_M[place])
        for name in self.others:
            other_M, _, exact_M = self.score(name)
            for place, record in stopping.items():
                record.others[name], record.exact[name] = float(other_M[place]), float(exact_M[place])

    def _compact(self) -> None:
        """Remove stopped replicas. A captured graph is kept until to go on training them would take longer than to
        record another."""
        running = [p for p, i in enumerate(self.alive) if self.records[i].stopped == RUNNING]
        stopped = len(self.alive) - len(running)
        if not stopped or (running and self._stepper.captured and not self._recording_repays(stopped)):
            return
        keep = torch.tensor(running, dtype=torch.long, device=self.device)
        self.alive = [self.alive[p] for p in running]
        for tensors in (self.params, self.first, self.second):
            for name in tensors:
                tensors[name] = tensors[name][keep]
        self._orders = {epoch: order[keep] for epoch, order in self._orders.items()}
        if running:
            self._stepper = self._make_stepper()

    def _recording_repays(self, stopped: int) -> bool:
        """Counted in tokens, not in seconds, so that a resumed training decides as an uninterrupted one."""
        tokens = (self.plan.steps - self.step) * self.plan.batch * self.splits["train"].inputs_DNT.shape[2]
        parameters = sum(p[0].numel() for p in self.params.values())
        return stopped * tokens * parameters >= RECORDED_MEANWHILE

    @torch.no_grad()
    def score(self, split: str) -> tuple[Tensor, Tensor, Tensor]:
        """Accuracy and mean cross-entropy over the scored positions, and the fraction of sequences without a mistake,
        by replica, (M,) each."""
        data = self.splits[split]
        which_M = torch.tensor([replica.data for replica in self.replicas], device=self.device)
        right = scored = total = whole = torch.zeros(len(self.alive), device=self.device)
        predicted: list[Tensor] = []
        for rows in torch.arange(data.inputs_DNT.shape[1], device=self.device).split(self._scored_at_once(data)):
            tokens, targets = data.inputs_DNT[which_M][:, rows], data.targets_DNT[which_M][:, rows]
            with autocast_on(self.device):
                logits_MBTV = torch.func.vmap(self.template.logits)(self.params, tokens.long()).float()
            counted = targets != IGNORE
            wanted = targets.long().clamp(min=0)
            nll = -logits_MBTV.log_softmax(-1).gather(-1, wanted[..., None])[..., 0]
            predicted_MBT = logits_MBTV.argmax(-1)
            if self.metric is not None:
                predicted.append(predicted_MBT.cpu())
            is_right = predicted_MBT == wanted
            if data.allowed_DNTK is not None:
                is_right = (predicted_MBT[..., None] == data.allowed_DNTK[which_M][:, rows]).any(dim=-1)
            right = right + (is_right & counted).sum(dim=(1, 2))
            whole = whole + (is_right | ~counted).all(dim=-1).sum(dim=-1)
            total = total + (nll * counted).sum(dim=(1, 2))
            scored = scored + counted.sum(dim=(1, 2))
        exact_M = whole / data.inputs_DNT.shape[1]
        if self.metric is None:
            return right / scored, total / scored, exact_M
        found_MNT, targets_DNT = torch.cat(predicted, dim=1).numpy(), data.targets_DNT.cpu().numpy()
        accuracies = [self.metric(found_MNT[m], targets_DNT[replica.data]) for m, replica in enumerate(self.replicas)]
        return torch.tensor(accuracies, device=self.device), total / scored, exact_M

    def _scored_at_once(self, data: Split) -> int:
        """The evaluation batch size: that of training, or more where it would leave a GPU idle."""
        widest = max(self.arch.header.vocab, 4 * self.arch.header.d)
        room = SCORED_NUMBERS // (len(self.alive) * data.inputs_DNT.shape[2] * widest)
        return max(self.plan.batch, room) if self.device.type == "cuda" else self.plan.batch

    def _make_stepper(self) -> Stepper:
        self._which_M = torch.tensor([m.data for m in self.replicas], device=self.device)
        return Stepper(self, compiled=self.plan.compiles_on(self.device))

    def batch(self, rows_MB: Tensor) -> Batch:
        train, which_M1 = self.splits["train"], self._which_M[:, None]
        tokens, targets = train.inputs_DNT[which_M1, rows_MB].long(), train.targets_DNT[which_M1, rows_MB].long()
        if self._scored is not None and isinstance(self.template.model, LanguageModel):
            at_MBS = self._scored[which_M1, rows_MB].long()
            return tokens, targets.gather(-1, at_MBS), at_MBS
        if not self.plan.curriculum:
            return tokens, targets
        if (
            self._stepper.captured
        ):  # the captured graph has one shape, so tokens beyond the prefix stay and are not scored
            return tokens, targets.where(torch.arange(tokens.shape[-1], device=self.device) < self._learnt, IGNORE)
        learnt = int(self._learnt)
        return tokens[..., :learnt], targets[..., :learnt]

    def rate(self, step: Tensor) -> Tensor:
        """The learning-rate schedule: a cosine to zero."""
        return 0.5 * (1 + torch.cos(math.pi * step / self._steps))

    def state(self) -> FleetState:
        """Everything `restore` needs: tensors and plain data."""
        tensors = {
            f"{kind}/{name}": value
            for kind, stack in (("params", self.params), ("first", self.first), ("second", self.second))
            for name, value in stack.items()
        }
        records = [record.saved() for record in self.records]
        return {"tensors": tensors, "step": self.step, "alive": self.alive, "seconds": self.seconds, "records": records}

    def restore(self, state: FleetState) -> None:
        """Resume from a saved state of the same fleet."""
        for kind, stack in (("params", self.params), ("first", self.first), ("second", self.second)):
            for name in stack:
                stack[name] = state["tensors"][f"{kind}/{name}"].to(self.device)
        self.step, self.alive, self.seconds = state["step"], list(state["alive"]), state["seconds"]
        for record, saved in zip(self.records, state["records"], strict=True):
            record.restore(saved)
        self._orders = {}
        self._stepper = self._make_stepper()


def scored_positions(targets_DNT: Tensor) -> Tensor | None:
    """The scored positions of every sequence, in order, padded with others to the same number for all, (D, N, S); None
    if most positions are scored."""
    counted_DNT = targets_DNT != IGNORE
    most = int(counted_DNT.sum(-1).max())
    wanted = -(-max(most, 1) // SCORED_MULTIPLE) * SCORED_MULTIPLE
    if wanted > SCORED_SHARE * targets_DNT.shape[-1]:
        return None
    first_DNT = counted_DNT.to(torch.uint8).argsort(dim=-1, descending=True, stable=True)
    return first_DNT[..., :wanted].to(torch.int16 if targets_DNT.shape[-1] < 2**15 else torch.int64)


def data_order(seed: int, epoch: int, size: int) -> Tensor:
    stream = torch.Generator().manual_seed((seed * 1_000_003 + epoch) % 2**63)
    return torch.randperm(size, generator=stream)


def _named(train: Split, validation: Split, test: Split) -> Iterator[tuple[str, Split]]:
    yield from (("train", train), ("validation", validation), ("test", test))


def _on(split: Split, device: torch.device) -> Split:
    allowed = None if split.allowed_DNTK is None else split.allowed_DNTK.to(device)
    return Split(split.inputs_DNT.to(device), split.targets_DNT.to(device), allowed)
