"""One optimizer step of a whole stacked ensemble: gather, gradients, AdamW, all replicas at once.

AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) works on stacked parameters; every replica has its own learning
rate and weight decay:

    m ← β₁ m + (1 − β₁) g,   v ← β₂ v + (1 − β₂) g²,   p ← p − lr (m̂ / (√v̂ + ε) + wd p)

as `torch.optim.AdamW` computes it. Weight decay is for the matrices of linear maps, embeddings and experts; norms,
biases, gates and decay rates have none.

On a GPU the gradient of all replicas is traced into one flat graph of tensor operations; the whole step around it is
compiled and then captured as a CUDA graph, so that nothing in it waits for the host. Compiling takes a minute or more,
so short trainings capture the eager operations instead. `torch.compile` cannot trace a custom autograd function inside
`torch.func` transforms; a graph recorded after the transforms contains its kernels as single operators, with replicas
folded into the batch.

Letters: M replicas, B batch, T time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from plait.model.compiled_blocks import remember_angles
from plait.ops.gpu import compiler_on
from plait.ops.paths import autocast_on, recorded_ops
from plait.training.split_products import split_long_products

Tensors = dict[str, Tensor]


class Moments(NamedTuple):
    """What AdamW changes: stacked parameters with their two moments; `decayed` names those with weight decay."""

    params: Tensors
    first: Tensors
    second: Tensors
    decayed: frozenset[str]


@dataclass(frozen=True)
class AdamW:
    """`clip` is the largest norm of a replica's whole gradient; 0: no clipping. `fused`: use as few kernels as
    possible, for uncompiled steps on a GPU."""

    betas: tuple[float, float] = (0.9, 0.98)
    eps: float = 1e-8
    clip: float = 0.0
    fused: bool = True

    def update(self, held: Moments, grads: Tensors, step: Tensor, lr_M: Tensor, decay_M: Tensor) -> None:
        """One step, in place. `step` counts from 1 and is a tensor, so that a captured graph can advance it."""
        if self.fused and step.is_cuda and not torch.compiler.is_compiling():
            self.update_fused(held, grads, step, lr_M, decay_M)
            return
        beta1, beta2 = self.betas
        correct1, correct2 = 1 - beta1**step, (1 - beta2**step).sqrt()
        shrink_M = None if not self.clip else (self.clip / (gradient_norms(grads) + 1e-6)).clamp(max=1.0)
        for name, p in held.params.items():
            g, m, v = grads[name].to(p.dtype), held.first[name], held.second[name]
            shape = (-1,) + (1,) * (p.dim() - 1)
            if shrink_M is not None:
                g = g * shrink_M.view(shape)
            rate = lr_M.view(shape)
            if name in held.decayed:
                p.mul_(1 - rate * decay_M.view(shape))
            m.lerp_(g, 1 - beta1)
            v.mul_(beta2).addcmul_(g, g, value=1 - beta2)
            p.sub_((rate / correct1) * m / (v.sqrt() / correct2 + self.eps))

    def update_fused(self, held: Moments, grads: Tensors, step: Tensor, lr_M: Tensor, decay_M: Tensor) -> None:
        """The same update by torch's fused kernel, which takes a single learning rate: a dozen kernels per replica
        instead of a dozen per parameter. Small uncompiled models are bound by the number of kernel launches."""
        params = held.params
        for m in range(len(lr_M)):
            replica_grads = [grads[name][m].to(p.dtype).contiguous() for name, p in params.items()]
            if self.clip:
                norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(replica_grads)))
                replica_grads = list(torch._foreach_mul(replica_grads, (self.clip / (norm + 1e-6)).clamp(max=1.0)))
            matrices = [p[m] for name, p in params.items() if name in held.decayed]
            if matrices:
                torch._foreach_mul_(matrices, 1 - lr_M[m] * decay_M[m])
            stacks = [[stack[name][m] for name in params] for stack in (params, held.first, held.second)]
            torch._fused_adamw_(
                stacks[0], replica_grads, stacks[1], stacks[2], [], [step] * len(replica_grads), lr=lr_M[m],
                beta1=self.betas[0], beta2=self.betas[1], weight_decay=0.0, eps=self.eps, amsgrad=False, maximize=False,
            )  # fmt: skip


def gradient_norms(grads: Tensors) -> Tensor:
    """The norm of each replica's whole gradient, (M,)."""
    squares = [g.float().flatten(1).square().sum(1) for g in grads.values()]
    return torch.stack(squares).sum(0).sqrt()


def zeros_like(params: Tensors) -> Tensors:
    return {name: torch.zeros_like(p) for name, p in params.items()}


#: A function of stacked parameters and a batch that returns the gradients and the loss of each replica.
Gradients = Callable[..., tuple[Tensors, Tensor]]
#: Tokens (M, B, T) and targets; if only some positions are scored, targets and positions are both (M, B, N).
Batch = tuple[Tensor, ...]


def record_gradients(gradients: Gradients, params: Tensors, batch: Batch) -> Gradients:
    """Trace `gradients` as a graph for arguments of these shapes, under the current autocast. The tensors of the batch
    must be distinct: one passed twice would become a single input of the graph."""
    from torch.fx.experimental.proxy_tensor import make_fx  # imports sympy, so only when something is traced

    names = list(params)

    def flat(*tensors: Tensor) -> list[Tensor]:
        values, inputs = tensors[: len(names)], tensors[len(names) :]
        grads, loss_M = gradients(dict(zip(names, values, strict=True)), *inputs)
        return [*(grads[name] for name in names), loss_M]

    with recorded_ops():
        # With fake tensors: an eager pass of a whole fleet might not fit into memory, while the compiled one does.
        record = make_fx(flat, tracing_mode="fake", _allow_non_fake_inputs=True)
        graph = record(*params.values(), *batch)
    if split_long_products(graph.graph):
        graph.recompile()

    def replay(params: Tensors, *batch: Tensor) -> tuple[Tensors, Tensor]:
        *grads, loss_M = graph(*(params[name] for name in names), *batch)
        return dict(zip(names, grads, strict=True)), loss_M

    return replay


class WithLoss(nn.Module):
    """A model whose forward pass returns its loss, for use with `functional_call`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, *batch: Tensor) -> Tensor:
        loss: Tensor = self.model.loss(*batch)
        return loss

    def logits(self, params: Tensors, tokens_BT: Tensor) -> Tensor:
        """The model's output with these parameters, which are named as this module's."""
        inner = {name.removeprefix("model."): p for name, p in params.items()}
        out: Tensor = torch.func.functional_call(self.model, inner, (tokens_BT,))
        return out


def stack_models(models: Sequence[nn.Module]) -> tuple[WithLoss, Tensors]:
    """The first model, as a template, and the parameters of all."""
    named = [dict(WithLoss(model).named_parameters()) for model in models]
    return WithLoss(models[0]), {name: torch.stack([p[name].detach() for p in named]) for name in named[0]}


class Replica(Protocol):
    """Settings that differ between replicas."""

    @property
    def lr(self) -> float: ...
    @property
    def weight_decay(self) -> float: ...


class Stacked(Protocol):
    """Models of one shape in training, as a stepper sees them: the tensors it updates, and the source of batches."""

    device: torch.device
    step: int
    template: WithLoss
    decayed: frozenset[str]
    params: Tensors
    first: Tensors
    second: Tensors

    @property
    def optimizer(self) -> AdamW: ...

    @property
    def replicas(self) -> Sequence[Replica]: ...

    def batch(self, rows_MB: Tensor) -> Batch:
        """The batch for these rows."""

    def rate(self, step: Tensor) -> Tensor:
        """The learning rate at a step, counted from 0, as a fraction of the peak. Computed with tensors only, because a
        captured graph replays it."""


class Stepper:
    """One optimizer step of all replicas. On a GPU its first call compiles the step and captures it as a graph."""

    def __init__(self, stacked: Stacked, *, vectorised: bool = True, compiled: bool = True) -> None:
        """Without `vectorised`, replicas run one after the other, each as if it were alone. Without `compiled`, the
        step is eager, and on a GPU captured without compiling."""
        self.captured = stacked.device.type == "cuda"
        self._compiled = compiled = compiled and (not self.captured or compiler_on(stacked.device))
        self._stacked = stacked
        replicas, device = stacked.replicas, stacked.device
        self._lr_M = torch.tensor([m.lr for m in replicas], device=device)
        self._decay_M = torch.tensor([m.weight_decay for m in replicas], device=device)
        self._step = torch.tensor(float(stacked.step), device=device)
        together: Gradients = torch.func.vmap(torch.func.grad_and_value(self._loss))
        self._gradients = together if compiled and (vectorised or self.captured) else self._one_by_one
        self._graph: torch.cuda.CUDAGraph | None = None

    def set_step(self, step: int) -> None:
        """Set the step counter, after the stacked tensors were restored in place to an earlier step."""
        self._step.fill_(float(step))

    def set_replicas(self, replicas: Sequence[Replica]) -> None:
        """Replace the replicas by others of the same number: copies their rates in place."""
        self._lr_M.copy_(torch.tensor([m.lr for m in replicas]))
        self._decay_M.copy_(torch.tensor([m.weight_decay for m in replicas]))

    def __call__(self, rows_MB: Tensor) -> Tensor:
        if not self.captured:
            return self._advance(*self._stacked.batch(rows_MB))
        if self._graph is None:
            self._capture(rows_MB, self.prepared(rows_MB))
            return self._loss_M
        self._rows_MB.copy_(rows_MB)
        self._graph.replay()
        return self._loss_M

    def _advance(self, *batch: Tensor) -> Tensor:
        """The step itself: gradients, then AdamW at the step's learning rate. Mutates the stacked tensors."""
        stacked = self._stacked
        with autocast_on(stacked.device):
            grads, loss_M = self._gradients(stacked.params, *batch)
        rate = stacked.rate(self._step)
        self._step.add_(1)
        with torch.no_grad():
            held = Moments(stacked.params, stacked.first, stacked.second, stacked.decayed)
            stacked.optimizer.update(held, grads, self._step, rate * self._lr_M, self._decay_M)
        detached: Tensor = loss_M.detach()
        return detached

    def _loss(self, params: Tensors, *batch: Tensor) -> Tensor:
        out: Tensor = torch.func.functional_call(self._stacked.template, params, batch)
        return out

    def _one_by_one(self, params: Tensors, *batch: Tensor) -> tuple[Tensors, Tensor]:
        losses, grads = [], []
        for m in range(len(batch[0])):
            leaves = {name: p[m].detach().requires_grad_() for name, p in params.items()}
            loss = self._loss(leaves, *(x[m] for x in batch))
            grads.append(torch.autograd.grad(loss, list(leaves.values()), materialize_grads=True))
            losses.append(loss.detach())
        by_name = dict(zip(params, zip(*grads, strict=True), strict=True))
        stacked = {name: g[0][None] if len(g) == 1 else torch.stack(g) for name, g in by_name.items()}
        return stacked, torch.stack(losses)

    def prepared(self, rows_MB: Tensor) -> Callable[..., Tensor]:
        """The step function to capture: with traced gradients and compiled, if requested."""
        stacked = self._stacked
        batch = stacked.batch(rows_MB)
        remember_angles(stacked.template, batch[0].shape[-1], torch.get_autocast_dtype(stacked.device.type))
        # An eager pass fills other caches of modules, which the graph then reads.
        with autocast_on(stacked.device), torch.no_grad():
            self._loss({name: p[0] for name, p in stacked.params.items()}, *(x[0, :1] for x in batch))
        if not self._compiled:
            return self._advance
        with autocast_on(stacked.device):
            self._gradients = record_gradients(self._gradients, stacked.params, batch)
        # Torch recompiles a function for at most eight models. Earlier ones are already captured or finished.
        torch._dynamo.eval_frame.remove_from_cache(self._advance)
        compiled: Callable[..., Tensor] = torch.compile(self._advance, fullgraph=True, dynamic=False)
        return compiled

    def _capture(self, rows_MB: Tensor, advance: Callable[..., Tensor]) -> None:
        """Warm up, capture the graph, and undo the warm-up steps."""
        stacked = self._stacked
        self._rows_MB = rows_MB.clone()
        stacks = (stacked.params, stacked.first, stacked.second)
        kept = [{name: p.clone() for name, p in stack.items()} for stack in stacks]
        step = self._step.clone()
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                advance(*stacked.batch(self._rows_MB))
        torch.cuda.current_stream().wait_stream(side)
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            self._loss_M = advance(*stacked.batch(self._rows_MB))
        for stack, saved in zip(stacks, kept, strict=True):
            for name in stack:
                stack[name].copy_(saved[name])
        self._step.copy_(step)
        self._graph.replay()
