"""One optimizer step of a whole stacked ensemble: gather, gradients, AdamW, all replicas at once.

AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) works on stacked parameters; every replica has its own learning
rate and weight decay:

    m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²,   p ← p − lr (m̂ / (√v̂ + ε) + wd p)

as `torch.optim.AdamW` computes it. Weight decay is for the matrices of linear maps, embeddings and experts; norms,
biases, gates and decay rates are left to themselves.

On a GPU the gradient of all replicas is one flat graph of tensor operations, the whole step around it is compiled and
then captured as a CUDA graph, so that nothing in it waits for the host. `torch.compile` cannot look through a
hand-written gradient below `torch.func`; a recording of what the transforms do holds the kernels behind it as operators
of their own, with replicas folded into their batch.

Letters: M replicas, B batch, T time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.fx.experimental.proxy_tensor import make_fx

from plait.ops.paths import recorded_ops

if TYPE_CHECKING:
    from plait.training.ensemble import Fleet


Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class AdamW:
    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8

    def update(
        self,
        params: Tensors,
        grads: Tensors,
        first: Tensors,
        second: Tensors,
        step: Tensor,
        lr_M: Tensor,
        decay_M: Tensor,
        decayed: frozenset[str],
    ) -> None:
        """One step, in place. `step` counts from 1 and is a tensor, so that a captured graph can advance it."""
        beta1, beta2 = self.betas
        correct1, correct2 = 1 - beta1**step, (1 - beta2**step).sqrt()
        for name, p in params.items():
            g, m, v = grads[name].to(p.dtype), first[name], second[name]
            shape = (-1,) + (1,) * (p.dim() - 1)
            rate = lr_M.view(shape)
            if name in decayed:
                p.mul_(1 - rate * decay_M.view(shape))
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            p.sub_((rate / correct1) * m / (v.sqrt() / correct2 + self.eps))


def decayed_parameters(model: nn.Module) -> frozenset[str]:
    """Names of the parameters that weight decay is for."""
    names = set()
    for prefix, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            matrix = isinstance(module, (nn.Linear, nn.Embedding)) and name == "weight"
            if matrix or parameter.dim() == 3:  # experts are stacks of matrices
                names.add(f"{prefix}.{name}" if prefix else name)
    return frozenset(names)


def zeros_like(params: Tensors) -> Tensors:
    return {name: torch.zeros_like(p) for name, p in params.items()}


Gradients = Callable[[Tensors, Tensor, Tensor], tuple[Tensors, Tensor]]


def record_gradients(gradients: Gradients, params: Tensors, tokens_MBT: Tensor) -> Gradients:
    """The same function for arguments of these shapes, recorded under the present autocast."""
    names = list(params)
    targets_MBT = tokens_MBT.clone()  # one tensor given twice would be one input of the graph

    def flat(*tensors: Tensor) -> list[Tensor]:
        *values, tokens, targets = tensors
        grads, loss_M = gradients(dict(zip(names, values, strict=True)), tokens, targets)
        return [*(grads[name] for name in names), loss_M]

    with recorded_ops():
        # On fake tensors: an eager pass of a whole fleet might not fit into memory, a compiled one does.
        record = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)
        graph = record(*params.values(), tokens_MBT, targets_MBT)

    def replay(params: Tensors, tokens_MBT: Tensor, targets_MBT: Tensor) -> tuple[Tensors, Tensor]:
        *grads, loss_M = graph(*(params[name] for name in names), tokens_MBT, targets_MBT)
        return dict(zip(names, grads, strict=True)), loss_M

    return replay


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
