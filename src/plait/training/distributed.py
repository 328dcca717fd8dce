"""Devices and processes of a training (one process, or as many as torchrun started).

DDP keeps a whole model in each process and averages gradients; FSDP2 keeps a slice of every parameter in each and
gathers a block's parameters while it runs. Both see forward passes only through the module they wrap.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.core.registry import require_one_of


def usable(device: str) -> str:
    """The device's name; `UserError` if torch cannot use it."""
    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"--device {device}: torch cannot compute on that here.") from None
    return device


SHARDINGS = ("ddp", "fsdp")
COLLECTIVE_TIMEOUT = timedelta(minutes=10)


@dataclass(frozen=True)
class Processes:
    """This process among those that train one model, and the collective operations between them."""

    rank: int
    world: int
    device: torch.device
    sharding: str = "ddp"
    tensor: int = 1  # neighbouring processes that share every layer (see `tensor_parallel`); they see the same batch
    data_group: dist.ProcessGroup | None = None  # processes with the same part of the layers; None: all
    tensor_group: dist.ProcessGroup | None = None  # processes that share the layers of this one

    @property
    def data_rank(self) -> int:
        return self.rank // self.tensor

    @property
    def data_world(self) -> int:
        """How many parts a batch is split into."""
        return self.world // self.tensor

    @property
    def tensor_rank(self) -> int:
        return self.rank % self.tensor

    @property
    def first(self) -> bool:
        return self.rank == 0

    @property
    def sharded(self) -> bool:
        """Whether parameters are spread over the processes."""
        return (self.sharding == "fsdp" and self.world > 1) or self.tensor > 1

    def wrap(self, objective: nn.Module, blocks: Sequence[nn.Module]) -> nn.Module:
        """Wrap `objective` in DDP or FSDP, so that its gradients are those of the batches of all processes together."""
        if self.data_world == 1:
            return objective
        if self.sharding == "ddp":
            from torch.nn.parallel import DistributedDataParallel

            return DistributedDataParallel(objective, process_group=self.data_group)
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

        mesh = init_device_mesh(self.device.type, (self.world,))
        # A parameter shared by several blocks must be gathered once for all of them: then the model is one FSDP group.
        for block in [] if _share_parameters(blocks) else blocks:
            fully_shard(block, mesh=mesh)
            for method in ("forward_with_loss", "forward_at", "extend", "connected"):  # the other ways a block runs
                register_fsdp_forward_method(block, method)
        # By default parameters stay gathered after a forward pass, and could not be saved after an evaluation.
        fully_shard(objective, mesh=mesh, reshard_after_forward=True)
        return objective

    def accumulating(self, wrapped: nn.Module, last: bool) -> AbstractContextManager[Any]:
        """Context for the backward pass of one micro-batch: gradients are reduced only after the last one."""
        if self.data_world == 1:
            return nullcontext()
        if self.sharding == "ddp":
            return nullcontext() if last else wrapped.no_sync()  # type: ignore[operator]
        wrapped.set_requires_gradient_sync(last)  # type: ignore[operator]
        return nullcontext()

    def sum(self, number: Tensor) -> Tensor:
        """All-reduce: the sum over the processes with different parts of a batch."""
        if self.data_world > 1:
            number = number.clone()
            dist.all_reduce(number, group=self.data_group)
        return number

    def gathered(self, number: float) -> list[float]:
        """The number of every process, in the order of their ranks."""
        if self.world == 1:
            return [number]
        numbers = torch.zeros(self.world, dtype=torch.float64, device=self.device)
        numbers[self.rank] = number
        dist.all_reduce(numbers)
        return [float(value) for value in numbers]

    def all_reduce_max(self, number: float) -> float:
        """All-reduce: the largest number of all processes."""
        if self.world == 1:
            return number
        box = torch.tensor(float(number), device=self.device)
        dist.all_reduce(box, op=dist.ReduceOp.MAX)
        return float(box)

    def any(self, flag: bool) -> bool:
        """Whether the flag is set in at least one process."""
        return self.all_reduce_max(flag) > 0

    def barrier(self) -> None:
        if self.world > 1:
            dist.barrier()

    def broadcast(self, value: Any) -> Any:
        """The value of the first process, in all processes."""
        if self.world == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, device=self.device)
        return box[0]


def is_sharded(tensor: Tensor) -> bool:
    """Whether FSDP keeps only a part of the tensor in each process."""
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """The full tensor. A sharded one is gathered, so all processes must call this together."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def _share_parameters(blocks: Sequence[nn.Module]) -> bool:
    owned = [id(parameter) for block in blocks for parameter in block.parameters()]
    return len(owned) > len(set(owned))


def _device_of_process(device: str, world: int) -> torch.device:
    """The device of this process; several processes on GPUs have one GPU each."""
    kind, _, index = device.partition(":")
    if kind not in ("cpu", "cuda", "mps") or (index and (kind != "cuda" or not index.isdecimal())):
        known = "cpu, mps (Apple's GPU), cuda, or one GPU of several, such as cuda:1"
        raise UserError(f"device {device}: models are trained on {known}.")
    if kind == "cpu":
        return torch.device("cpu")
    if kind == "mps":
        if not torch.backends.mps.is_available():
            raise UserError("device mps: this machine has no Apple GPU that torch can use.")
        if world > 1:
            raise UserError(f"device mps: {world} processes cannot share one GPU; train with one.")
        return torch.device("mps")
    if not torch.cuda.is_available():
        raise UserError(f"device {device}: this machine has no CUDA device that torch can use.")
    if index and world > 1:
        raise UserError(f"device {device}: {world} processes cannot share one GPU; write cuda, and each takes its own.")
    chosen = int(index or os.environ.get("LOCAL_RANK", "0"))
    if chosen >= torch.cuda.device_count():
        raise UserError(f"cuda:{chosen}: this machine has {torch.cuda.device_count()} CUDA devices, counted from 0.")
    torch.cuda.set_device(chosen)
    return torch.device("cuda", chosen)


@contextmanager
def processes(device: str = "cpu", sharding: str = "ddp", tensor: int = 1) -> Iterator[Processes]:
    """Join the process group that torchrun started, or be the only process. `tensor` neighbouring processes share every
    layer."""
    require_one_of(sharding, SHARDINGS, f"sharding {sharding}")
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    if tensor < 1 or world % tensor:
        raise UserError(
            f"--tensor-parallel {tensor}: {world} processes do not divide into groups of {tensor}; start them by "
            f"torchrun --nproc-per-node {max(2, tensor)} -m plait train …"
        )
    if tensor > 1 and sharding != "ddp":
        raise UserError(f"--tensor-parallel {tensor} works only with --sharding ddp, not {sharding}.")
    place = _device_of_process(device, world)
    if world == 1:
        yield Processes(0, 1, place, sharding)
        return
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo", timeout=COLLECTIVE_TIMEOUT)
    try:
        yield Processes(rank, world, place, sharding, tensor, *_groups(rank, world, tensor))
    finally:
        dist.destroy_process_group()


def _groups(rank: int, world: int, tensor: int) -> tuple[dist.ProcessGroup | None, dist.ProcessGroup | None]:
    """The data-parallel and tensor-parallel groups of this process. Every process must create all of them."""
    if tensor == 1:
        return None, None
    data = [dist.new_group(list(range(first, world, tensor))) for first in range(tensor)]
    shared = [dist.new_group(list(range(first, first + tensor))) for first in range(0, world, tensor)]
    return data[rank % tensor], shared[rank // tensor]
