"""One optimizer step of a whole fleet: gather, gradients, AdamW, all members at once.

On a GPU the step is compiled and captured as a CUDA graph, so that nothing in it waits for the host. Where a mixer has
kernels of its own, it is captured as it is: what a compiler makes of that mixer's plain form is slower.

Letters: M members, B batch, T time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from plait.mixers.mixer import Mixer
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
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, rows_MB: Tensor) -> Tensor:
        if not self.captured:
            return self._advance(rows_MB)
        if self._graph is None:
            self._capture(rows_MB)
            return self._loss_M
        self._rows_MB.copy_(rows_MB)
        self._graph.replay()
        return self._loss_M

    def _advance(self, rows_MB: Tensor) -> Tensor:
        """The step itself: gather, gradients, AdamW along the cosine. Mutates the fleet's stacked tensors."""
        fleet = self._fleet
        train = fleet.splits["train"]
        tokens = train.inputs_DNT[self._which_M[:, None], rows_MB].long()
        targets = train.targets_DNT[self._which_M[:, None], rows_MB].long()
        with precision(fleet.device):
            grads, loss_M = torch.func.vmap(torch.func.grad_and_value(self._loss))(fleet.params, tokens, targets)
        rate = 0.5 * (1 + torch.cos(math.pi * self._step / fleet.plan.steps))
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
        compiled: Callable[[Tensor], Tensor] = self._advance
        if not any(isinstance(module, Mixer) and module.own_kernels for module in fleet.template.modules()):
            compiled = torch.compile(self._advance, fullgraph=True, dynamic=False)
            # An eager pass first: what modules remember (rotary angles) a graph then reads instead of computing.
            with torch.no_grad(), precision(fleet.device):
                tokens = fleet.splits["train"].inputs_DNT[0, :1].long()
                fleet.template(tokens, tokens)
        kept = [{name: p.clone() for name, p in stack.items()} for stack in (fleet.params, fleet.first, fleet.second)]
        step = self._step.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                compiled(self._rows_MB)
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss_M = compiled(self._rows_MB)
        for stack, saved in zip((fleet.params, fleet.first, fleet.second), kept, strict=True):
            for name in stack:
                stack[name].copy_(saved[name])
        self._step.copy_(step)
        self._graph.replay()


def precision(device: torch.device) -> torch.autocast:
    """bf16 products on a GPU, fp32 everywhere else; ops that need full precision see to it themselves."""
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
