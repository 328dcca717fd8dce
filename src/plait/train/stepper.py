"""One optimizer step of a whole fleet: gather, gradients, AdamW, all members at once.

On a GPU the gradient of all members is recorded as one graph of tensor operations (`plait.train.recording`), the whole
step around it is compiled and then captured as a CUDA graph, so that nothing in it waits for the host.

Letters: M members, B batch, T time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from plait.train.recording import Gradients, record_gradients
from plait.train.stacked_adamw import Tensors

if TYPE_CHECKING:
    from plait.train.fleet import Fleet


class WithLoss(nn.Module):
    """A model whose forward pass is its loss, as `functional_call` wants it."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        loss: Tensor = self.model.loss(tokens_BT, targets_BT)
        return loss


class Stepper:
    """One optimizer step of all members. On a GPU it compiles the step at its first call and captures it as a graph."""

    def __init__(self, fleet: Fleet) -> None:
        self.captured = fleet.device.type == "cuda"
        self._fleet = fleet
        members, device = fleet.members, fleet.device
        self._lr_M = torch.tensor([m.lr for m in members], device=device)
        self._decay_M = torch.tensor([m.weight_decay for m in members], device=device)
        self._which_M = torch.tensor([m.data for m in members], device=device)
        self._step = torch.tensor(float(fleet.step), device=device)
        # A tensor, so that fleets of one shape share a compiled graph however long they train.
        self._steps = torch.tensor(float(fleet.plan.steps), device=device)
        self._gradients: Gradients = torch.func.vmap(torch.func.grad_and_value(self._loss))
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, rows_MB: Tensor) -> Tensor:
        if not self.captured:
            return self._advance(*self._batch(rows_MB))
        if self._graph is None:
            self._capture(rows_MB)
            return self._loss_M
        self._rows_MB.copy_(rows_MB)
        self._graph.replay()
        return self._loss_M

    def _batch(self, rows_MB: Tensor) -> tuple[Tensor, Tensor]:
        train, which_M1 = self._fleet.splits["train"], self._which_M[:, None]
        return train.inputs_DNT[which_M1, rows_MB].long(), train.targets_DNT[which_M1, rows_MB].long()

    def _advance(self, tokens: Tensor, targets: Tensor) -> Tensor:
        """The step itself: gradients, AdamW along the cosine. Mutates the fleet's stacked tensors."""
        fleet = self._fleet
        with precision(fleet.device):
            grads, loss_M = self._gradients(fleet.params, tokens, targets)
        rate = 0.5 * (1 + torch.cos(math.pi * self._step / self._steps))
        self._step.add_(1)
        with torch.no_grad():
            fleet.plan.optimizer.update(
                fleet.params, grads, fleet.first, fleet.second, self._step, rate * self._lr_M, self._decay_M,
                fleet.decayed,
            )  # fmt: skip
        detached: Tensor = loss_M.detach()
        return detached

    def _loss(self, params: Tensors, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(self._fleet.template, params, (tokens_BT, targets_BT))
        return out

    def _capture(self, rows_MB: Tensor) -> None:
        """Compile, warm up on copies so that no step is taken twice, then record the graph."""
        fleet = self._fleet
        self._rows_MB = rows_MB.clone()
        # An eager pass first: what modules remember (rotary angles) a graph then reads instead of computing.
        tokens_MBT, _ = self._batch(rows_MB)
        with precision(fleet.device):
            with torch.no_grad():
                fleet.template(tokens_MBT[0, :1], tokens_MBT[0, :1])
            self._gradients = record_gradients(self._gradients, fleet.params, tokens_MBT)
        compiled: Callable[..., Tensor] = torch.compile(self._advance, fullgraph=True, dynamic=False)
        kept = [{name: p.clone() for name, p in stack.items()} for stack in (fleet.params, fleet.first, fleet.second)]
        step = self._step.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                compiled(*self._batch(self._rows_MB))
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss_M = compiled(*self._batch(self._rows_MB))
        for stack, saved in zip((fleet.params, fleet.first, fleet.second), kept, strict=True):
            for name in stack:
                stack[name].copy_(saved[name])
        self._step.copy_(step)
        self._graph.replay()


def precision(device: torch.device) -> torch.autocast:
    """bf16 products on a GPU, fp32 everywhere else; ops that need full precision see to it themselves."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
