"""The training loop.

A step is a pure function of the state before it and its number: the batch, the learning rate and the dropout masks all
come from the step's number, so a run that is stopped anywhere and resumed ends as if it had not been. What has to be
kept is little: weights, the optimizer's state, and Transformer-XL's memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.core.random_streams import seed_of
from plait.mixers.attn_module import Attention
from plait.model import build
from plait.model.backbone import ModelState, ResidualSum
from plait.model.construct import add_next_sentence_head
from plait.model.heads import Encoder, LanguageModel
from plait.training import shards
from plait.training.batches import Batch, Batches, Objective
from plait.training.distributed import Processes
from plait.training.job import Job
from plait.training.optimizer import make_optimizer, set_rate, update_on_device
from plait.training.optimizer_state import plain_state, restore_state, state_pieces
from plait.training.recipe import Recipe, rate
from plait.training.run import load_start
from plait.training.shards import Checkpoint, Piece, is_sharded, piece_of, read_into
from plait.training.validation import Validation

#: So many steps in a row may come out infinite or NaN and be skipped.
MOST_SKIPPED = 20


class Diverged(UserError):
    """The loss is no number any more."""

    def __init__(self, what: str, recipe: Recipe) -> None:
        clipping = "" if 0 < recipe.clip <= 1 else " or clipping (--set clip=1)"
        super().__init__(f"{what} Try a lower learning rate (--lr, now {recipe.lr:g}){clipping}.")


@dataclass(frozen=True)
class Taken:
    """One optimizer step: its loss in nats, the gradient's norm, and whether the update was made."""

    step: int
    loss: float
    norm: float
    lr: float
    skipped: bool


@dataclass(frozen=True)
class Launched:
    """A step that the device may still be computing."""

    step: int
    lr: float
    numbers: Tensor  # loss, norm, whether the update was made: on their way to this machine's memory
    ready: torch.cuda.Event | None

    def read(self) -> tuple[float, float, bool]:
        if self.ready is not None:
            self.ready.synchronize()
        loss, norm, made = self.numbers.tolist()
        return loss, norm, made > 0


class Trainer:
    """One process's part in a training of `steps` steps."""

    def __init__(
        self, job: Job, steps: int, dist: Processes, *, activation_checkpointing: bool = False, compiled: bool = False
    ) -> None:
        self.job, self.steps, self.dist, self.recipe = job, steps, dist, job.recipe
        model = build(job.arch, seed=job.seed, device=dist.device)
        assert isinstance(model, (LanguageModel, Encoder))
        self.model = model
        if self.recipe.next_sentence and isinstance(model, Encoder):
            add_next_sentence_head(model, job.seed)
        if job.start is not None:
            load_start(model, job.start)
        model.backbone.activation_checkpointing = activation_checkpointing
        set_dropout(model, self.recipe)
        self.objective = dist.wrap(Objective(model), list(model.backbone.blocks)).train()
        self.optimizer = make_optimizer(model, self.recipe)
        self.batches = Batches(job.arch, job.corpus, self.recipe, job.seed, dist)
        self.validation = Validation(job.corpus, self.recipe, job.arch.header.kind, job.validation_tokens)
        self.autocast = torch.autocast(dist.device.type, torch.bfloat16, enabled=job.precision == "bf16")
        self.step = self.updates = self.skipped_in_a_row = 0
        self.memory: list[ModelState] = []  # one for each part of an accumulated batch
        self.compiled = False
        if compiled:
            self.compile()

    def compile(self) -> None:
        """Compile the blocks, for the steps from now on."""
        if self.dist.sharded:
            raise UserError("--compile does not go together with fsdp; leave one of them out.")
        if self.recipe.memory:  # whose shapes change with every segment at first
            self.objective.compile()
        else:
            dtype = torch.bfloat16 if self.job.precision == "bf16" else torch.float32
            self.model.backbone.compile_blocks(self.recipe.seq_len, dtype)
        self.compiled = True

    def advance(self) -> Taken:
        """One optimizer step, from beginning to end."""
        return self.settle(self.launch())

    def launch(self) -> Launched:
        """One optimizer step, without waiting for a GPU to compute it; `settle` waits."""
        lr = self.recipe.lr * rate(self.recipe, self.step, self.steps)
        set_rate(self.optimizer, lr)
        seed_dropout(self.job.seed, self.step, self.dist.rank)
        loss = self._backward(self.batches(self.step))
        self.step += 1
        norm, made = update_on_device(self.optimizer, list(self.model.parameters()), self.recipe.clip, loss)
        exact = torch.float32 if loss.device.type == "mps" else torch.float64
        numbers = torch.stack([x.to(loss.device, exact) for x in (loss, norm, made)])
        ready: torch.cuda.Event | None = None
        if numbers.is_cuda:
            numbers, ready = numbers.to("cpu", non_blocking=True), torch.cuda.Event()
            ready.record()
        return Launched(self.step, lr, numbers, ready)

    def settle(self, launched: Launched) -> Taken:
        """What came of a step; steps are settled in the order in which they were launched."""
        loss, norm, updated = launched.read()
        self.updates += updated
        self.skipped_in_a_row = 0 if updated else self.skipped_in_a_row + 1
        if self.skipped_in_a_row >= MOST_SKIPPED:
            raise Diverged(
                f"the loss has not been finite for {MOST_SKIPPED} steps up to step {launched.step}; a checkpoint from "
                "before is kept, if there was one.",
                self.recipe,
            )
        return Taken(launched.step, loss, norm, launched.lr, skipped=not updated)

    def validation_loss(self, share: float = 1.0) -> float:
        """On the validation text, or on a share of its windows: the same ones for the same share."""
        return self.validation.loss(self.objective, self.model, self.dist, self.autocast, share)

    def _backward(self, batch: Batch) -> Tensor:
        """Gradients of the mean loss over all scored tokens of the step, in every process and part; the loss."""
        parts = batch.parts(self.recipe.gradient_accumulation)
        everywhere: float | Tensor = float(batch.scored)
        if self.dist.world > 1:
            everywhere = self.dist.sum(torch.tensor(everywhere, device=self.dist.device))
        if self.recipe.memory and (batch.fresh or not self.memory):
            self.memory = [self._language_model.init_memory(len(part.tokens_BT), self.recipe.memory) for part in parts]
        total = torch.zeros((), device=self.dist.device)
        for i, part in enumerate(parts):
            # Gradients are averaged over processes; each has its own number of scored tokens, but equally many rows.
            share = part.scored / everywhere
            pair = () if part.follows_B is None else (part.segments_BT, part.follows_B, self._row_share / share)
            with self.dist.accumulating(self.objective, last=i == len(parts) - 1):
                with self.autocast:
                    before = self.memory[i] if self.memory else None
                    loss, memory = self.objective(part.tokens_BT, part.targets_BT, before, *pair)
                (loss * (share * self.dist.world)).backward()
                total += loss.detach() * share
            if memory is not None:
                self.memory[i] = detached(memory)
        return self.dist.sum(total)

    @property
    def _row_share(self) -> float:
        """Of a part of a process's batch in the rows of a step."""
        return 1 / (self.dist.world * self.recipe.gradient_accumulation)

    @property
    def _language_model(self) -> LanguageModel:
        assert isinstance(self.model, LanguageModel)
        return self.model

    # ---- on disk

    def save(self, folder: Path, plain: dict[str, Any]) -> None:
        named = dict(self.model.named_parameters())
        pieces = {
            f"params/{name}": piece_of(parameter, self.dist)
            for name, parameter in named.items()
            if self.dist.first or is_sharded(parameter)
        }
        pieces |= state_pieces(self.optimizer, named, self.dist)
        for key, value in _memory_tensors(self.memory).items():
            pieces[f"memory/{key}"] = Piece(value, self.dist.rank * len(value), self.dist.world * len(value))
        state = {
            "updates": self.updates,
            "skipped_in_a_row": self.skipped_in_a_row,
            "optimizer": plain_state(self.optimizer, named),
        }
        shards.save(folder, self.step, pieces, {**plain, "trainer": state}, self.dist)

    def restore(self, saved: Checkpoint) -> None:
        """Go on from a checkpoint of the same job, whatever the number of processes that wrote it."""
        state = saved.plain["trainer"]
        self.step, self.updates = saved.step, int(state["updates"])
        self.skipped_in_a_row = int(state["skipped_in_a_row"])
        named = dict(self.model.named_parameters())
        with torch.no_grad():
            for name, parameter in named.items():
                read_into(saved, f"params/{name}", parameter, self.dist)
            restore_state(self.optimizer, named, saved, state.get("optimizer"), self.updates, self.dist)
        if self.recipe.memory and self.step:
            self._restore_memory(saved)

    def _restore_memory(self, saved: Checkpoint) -> None:
        rows = self.recipe.batch // self.dist.world // self.recipe.gradient_accumulation
        self.memory = []
        for i in range(self.recipe.gradient_accumulation):
            first = (self.dist.rank * self.recipe.gradient_accumulation + i) * rows

            def kept(name: str, first: int = first) -> Tensor:
                return saved.rows(f"memory/{name}", first, first + rows).to(self.dist.device)

            empty = self._language_model.init_memory(rows, self.recipe.memory)
            layers = tuple({key: kept(f"{n}/{key}") for key in layer} for n, layer in enumerate(empty.layers))
            self.memory.append(ModelState(layers, kept("pos")))

    def weights(self) -> dict[str, Tensor]:
        """All weights, whole, on the CPU. Every process has to ask, for sharded ones are gathered; a tied matrix comes
        once."""
        gathered = {}
        for name, parameter in self.model.named_parameters():
            whole = getattr(parameter, "full_tensor", None)
            gathered[name] = (parameter if whole is None else whole()).detach().cpu().contiguous()
        return gathered


def set_dropout(model: LanguageModel | Encoder, recipe: Recipe) -> None:
    model.backbone.dropout = recipe.dropout
    for module in model.modules():
        if isinstance(module, ResidualSum):
            module.dropout = recipe.dropout
        elif isinstance(module, Attention):
            module.dropout = recipe.attn_dropout


def seed_dropout(seed: int, step: int, rank: int) -> None:
    torch.manual_seed(seed_of(f"dropout/{seed}/{step}/{rank}", size=7))


def detached(memory: ModelState) -> ModelState:
    layers = tuple({key: value.detach() for key, value in layer.items()} for layer in memory.layers)
    return ModelState(layers, memory.pos_B, memory.pad_B)


def _memory_tensors(parts: list[ModelState]) -> dict[str, Tensor]:
    """By layer and key, the rows of all parts one after the other, as they follow in the batch."""
    if not parts:
        return {}
    named = {
        f"{n}/{key}": torch.cat([memory.layers[n][key] for memory in parts])
        for n, layer in enumerate(parts[0].layers)
        for key in layer
    }
    return {**named, "pos": torch.cat([memory.pos_B for memory in parts])}
