"""Tensor parallelism: several processes share each layer of one model; each computes some of its heads or a part of
d_ff.

    torchrun --nproc-per-node 2 -m plait train SPEC --data TEXT --steps 1000 --tensor-parallel 2

The first linear map of a mixer is split by rows and the last one by columns; everything in between works on single
heads or channels, so processes exchange tensors twice per layer (Shoeybi et al. 2019, arXiv:1909.08053, section 3):

    y = Σ_p  W_out[:, p] f(W_in[p, :] x)        an all-reduce of y, and of the gradient of x on the way back

`Mixer.tensor_parallel` states how a mixer's parameters are split. Mixers that do not support it (users' own,
recurrences), embeddings, norms and the head are replicated in every process. Checkpoints and weights on disk are those
of a single process, so a run may resume with any number of processes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.mixers.mixer import Cut, Mixer
from plait.model.backbone import Backbone
from plait.training.distributed import Processes
from plait.training.recipe import Recipe

#: Elementwise optimizers, which can update a part of a matrix by itself.
ELEMENTWISE = ("adamw", "adam", "sgd", "rmsprop", "adagrad")


class CutParameter(nn.Parameter):
    """This process's part of a parameter."""

    cut: Cut
    among: Processes
    whole_shape: torch.Size

    @classmethod
    def of(cls, whole: Tensor, cut: Cut, among: Processes) -> CutParameter:
        parameter: CutParameter = cls(cut.part(whole.detach(), among.tensor_rank, among.tensor))
        parameter.cut, parameter.among, parameter.whole_shape = cut, among, whole.shape
        return parameter

    def part_of(self, whole: Tensor) -> Tensor:
        return self.cut.part(whole, self.among.tensor_rank, self.among.tensor)

    def whole_of(self, part: Tensor) -> Tensor:
        """The whole tensor on the CPU, gathered from all processes, which must call this together. `part`: the
        parameter, or an optimizer's elementwise state of it."""
        parts = [torch.empty_like(part) for _ in range(self.among.tensor)]
        dist.all_gather(parts, part.detach().contiguous(), group=self.among.tensor_group)
        return self.cut.join([tensor.cpu() for tensor in parts])


# ---- split linear maps


class _Enter(torch.autograd.Function):
    """Forward: identity. Backward: the sum of the gradients of all processes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: dist.ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        gradient = gradient.contiguous().clone()
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class _Leave(torch.autograd.Function):
    """Forward: the sum over all processes. Backward: identity."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, group: dist.ProcessGroup) -> Tensor:
        y = y.contiguous().clone()
        dist.all_reduce(y, group=group)
        return y

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return gradient, None


class ColumnLinear(nn.Linear):
    """Some of a linear map's outputs."""

    group: dist.ProcessGroup

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(_Enter.apply(x, self.group), self.weight, self.bias)


class RowLinear(nn.Linear):
    """A linear map of some of its inputs, summed over the processes; the bias is added once."""

    group: dist.ProcessGroup

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = _Leave.apply(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


# ---- split models


def cut_model(backbone: Backbone, recipe: Recipe, among: Processes) -> str:
    """Keep in this process only its part of every mixer that can be split; returns which mixers were and were not."""
    option = f"--tensor-parallel {among.tensor}"
    if recipe.optimizer not in ELEMENTWISE:
        raise UserError(
            f"{option}: optimizer={recipe.optimizer} needs whole matrices; known: {', '.join(ELEMENTWISE)}."
        )
    if recipe.attn_dropout:
        raise UserError(f"{option}: attn_dropout={recipe.attn_dropout} would drop the same weights in several heads.")
    linked = {*backbone.arch.links, *backbone.arch.links.values()}  # tensors that other layers read must be whole
    mixers = {id(block.mixer): (place, block.mixer) for place, block in enumerate(backbone.blocks)}
    cut, uncut = set[str](), set[str]()
    for place, mixer in mixers.values():
        plan = {} if place in linked else mixer.tensor_parallel(among.tensor)
        (cut if plan else uncut).add(mixer.options.name)
        if plan:
            _cut_mixer(mixer, plan, among)
    if not cut:
        raise UserError(
            f"{option}: no mixer of this model can be shared by {among.tensor} processes "
            f"({', '.join(sorted(uncut))}). attn, fox, mlp and swiglu can, where heads and d_ff divide by it."
        )
    every = f"; {', '.join(sorted(uncut))} in each of them" if uncut else ""
    return f"{', '.join(sorted(cut))} shared by {among.tensor} processes{every}"


def _cut_mixer(mixer: Mixer, plan: dict[str, Cut], among: Processes) -> None:
    group = among.tensor_group
    assert group is not None
    for name, cut in plan.items():
        owner_name, _, attribute = name.rpartition(".")
        owner = mixer.get_submodule(owner_name)
        tensor: Tensor = getattr(owner, attribute)
        if not cut.segments:
            tensor.register_hook(lambda gradient: _summed(gradient, group))
        elif isinstance(tensor, nn.Parameter):
            setattr(owner, attribute, CutParameter.of(tensor, cut, among))
        else:
            setattr(owner, attribute, cut.part(tensor, among.tensor_rank, among.tensor))
        if isinstance(owner, nn.Linear) and attribute == "weight":
            # The same module with another `forward`, so that parameter names stay the same for checkpoints and weight
            # decay.
            owner.__class__ = ColumnLinear if cut.dim == 0 else RowLinear
            owner.group = group  # type: ignore[assignment]


def _summed(gradient: Tensor, group: dist.ProcessGroup) -> Tensor:
    gradient = gradient.contiguous().clone()
    dist.all_reduce(gradient, group=group)
    return gradient
