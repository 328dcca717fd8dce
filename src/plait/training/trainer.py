"""The model in training: one optimizer step after the other, its validation loss, its checkpoints.

A step depends on the state before it and its number alone: batch, learning rate and dropout masks all come from the
number. So a run that is stopped anywhere and resumed ends as if it had not been. A checkpoint needs the weights, the
optimizer's state, and Transformer-XL's memory.

`start_of` and `load_start` are for a training that starts from the weights of a finished run (`--from RUN`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from plait.core.errors import UserError
from plait.data import Corpus
from plait.mixers.attn_module import Attention
from plait.model import build
from plait.model.backbone import ModelState, ResidualSum
from plait.model.compiled_blocks import compile_blocks
from plait.model.language_model import Encoder, LanguageModel, add_next_sentence_head, fill, seed_of
from plait.training.batches import Batch, Batches, Objective, Validation
from plait.training.checkpoint import Checkpoint, Piece, piece_of, read_into, save_checkpoint, whole_of
from plait.training.distributed import Processes, is_sharded, whole
from plait.training.optimizer import (
    make_optimizer,
    plain_state,
    restore_state,
    set_rate,
    state_pieces,
    update_on_device,
)
from plait.training.recipe import Job, Recipe, Start, rate
from plait.training.run import NEXT_SENTENCE, WEIGHTS, Run
from plait.training.tensor_parallel import cut_model

#: After so many steps in a row whose loss or gradient is infinite or NaN, a training has diverged.
MOST_SKIPPED = 20


class Diverged(UserError):
    """The loss is infinite or NaN, and stays so."""

    def __init__(self, what: str, recipe: Recipe) -> None:
        clipping = "" if 0 < recipe.clip <= 1 else " or clipping (--set clip=1)"
        super().__init__(f"{what} Try a lower learning rate (--lr, now {recipe.lr:g}){clipping}.")


@dataclass(frozen=True)
class StepResult:
    """One optimizer step: its loss in nats, the gradient's norm, and whether the update was made."""

    step: int
    loss: float
    norm: float
    lr: float
    skipped: bool


@dataclass(frozen=True)
class PendingStep:
    """A step that the device may still be computing."""

    step: int
    lr: float
    numbers: Tensor  # loss, norm, whether the update was made: being copied to the CPU
    ready: torch.cuda.Event | None

    def read(self) -> tuple[float, float, bool]:
        if self.ready is not None:
            self.ready.synchronize()
        loss, norm, made = self.numbers.tolist()
        return loss, norm, made > 0


class Trainer:
    """Model, optimizer and data of a training of `steps` steps, in one of its processes."""

    def __init__(
        self, job: Job, steps: int, dist: Processes, *, activation_checkpointing: bool = False, compiled: bool = False
    ) -> None:
        self.job, self.steps, self.dist, self.recipe = job, steps, dist, job.recipe
        # A model whose layers are shared is cut before it goes to a GPU, which need not hold all of it.
        model = build(job.arch, seed=job.seed, device=dist.device if dist.tensor == 1 else "cpu")
        assert isinstance(model, (LanguageModel, Encoder))
        self.model = model
        if self.recipe.next_sentence and isinstance(model, Encoder):
            add_next_sentence_head(model, job.seed)
        if job.start is not None:
            load_start(model, job.start)
        self.note = ""  # which mixers are shared by processes
        if dist.tensor > 1:
            self.note = cut_model(model.backbone, self.recipe, dist)
            model.to(dist.device)
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
            raise UserError("--compile cannot be combined with fsdp or tensor parallelism; leave one of them out.")
        if self.recipe.memory:  # whose shapes change with every segment at first
            self.objective.compile()
        else:
            dtype = torch.bfloat16 if self.job.precision == "bf16" else torch.float32
            compile_blocks(self.model.backbone, self.recipe.seq_len, dtype)
        self.compiled = True

    def advance(self) -> StepResult:
        """One optimizer step."""
        return self.wait(self.launch())

    def launch(self) -> PendingStep:
        """Start one optimizer step; on a GPU this does not wait until it is computed."""
        lr = self.recipe.lr * rate(self.recipe, self.step, self.steps)
        set_rate(self.optimizer, lr)
        seed_dropout(self.job.seed, self.step, self.dist.data_rank, self.dist.device)
        loss = self._backward(self.batches(self.step))
        self.step += 1
        norm, made = update_on_device(self.optimizer, list(self.model.parameters()), self.recipe.clip, loss)
        exact = torch.float32 if loss.device.type == "mps" else torch.float64
        numbers = torch.stack([x.to(loss.device, exact) for x in (loss, norm, made)])
        ready: torch.cuda.Event | None = None
        if numbers.is_cuda:
            numbers, ready = numbers.to("cpu", non_blocking=True), torch.cuda.Event()
            ready.record()
        return PendingStep(self.step, lr, numbers, ready)

    def wait(self, pending: PendingStep) -> StepResult:
        """The result of a step; to be called in the order of the launches."""
        loss, norm, updated = pending.read()
        self.updates += updated
        self.skipped_in_a_row = 0 if updated else self.skipped_in_a_row + 1
        if self.skipped_in_a_row >= MOST_SKIPPED:
            raise Diverged(
                f"the loss has not been finite for {MOST_SKIPPED} steps up to step {pending.step}; a checkpoint from "
                "before is kept, if there was one.",
                self.recipe,
            )
        return StepResult(pending.step, loss, norm, pending.lr, skipped=not updated)

    def validation_loss(self, share: float = 1.0) -> float:
        """On the validation text, or on a share of its windows, which are always the same ones."""
        return self.validation.loss(self.objective, self.model, self.dist, self.autocast, share)

    def _backward(self, batch: Batch) -> Tensor:
        """Gradients of the mean loss over the step's scored tokens, of all processes and parts; returns that loss."""
        parts = batch.parts(self.recipe.gradient_accumulation)
        all_scored: float | Tensor = float(batch.scored)
        if self.dist.data_world > 1:
            all_scored = self.dist.sum(torch.tensor(all_scored, device=self.dist.device))
        if self.recipe.memory and (batch.fresh or not self.memory):
            self.memory = [self._language_model.init_memory(len(part.tokens_BT), self.recipe.memory) for part in parts]
        total = torch.zeros((), device=self.dist.device)
        for i, part in enumerate(parts):
            # Gradients are averaged over processes, which have as many rows each, but not as many scored tokens.
            share = part.scored / all_scored
            pair = () if part.follows_B is None else (part.segments_BT, part.follows_B, self._row_share / share)
            with self.dist.accumulating(self.objective, last=i == len(parts) - 1):
                with self.autocast:
                    before = self.memory[i] if self.memory else None
                    loss, memory = self.objective(part.tokens_BT, part.targets_BT, before, *pair)
                (loss * (share * self.dist.data_world)).backward()
                total += loss.detach() * share
            if memory is not None:
                self.memory[i] = detached(memory)
        return self.dist.sum(total)

    @property
    def _row_share(self) -> float:
        """One part of one process's batch, as a share of all rows of a step."""
        return 1 / (self.dist.data_world * self.recipe.gradient_accumulation)

    @property
    def _language_model(self) -> LanguageModel:
        assert isinstance(self.model, LanguageModel)
        return self.model

    # ---- on disk

    def save(self, folder: Path, plain: Mapping[str, Any]) -> None:
        named = dict(self.model.named_parameters())
        wholes = {name: whole_of(parameter, parameter) for name, parameter in named.items()}
        pieces = {
            f"params/{name}": piece_of(tensor, self.dist)
            for name, tensor in wholes.items()
            if self.dist.first or is_sharded(tensor)
        }
        pieces |= state_pieces(self.optimizer, named, self.dist)
        for key, value in _memory_tensors(self.memory).items():
            if self.dist.tensor_rank == 0:
                first = self.dist.data_rank * len(value)
                pieces[f"memory/{key}"] = Piece(value, first, self.dist.data_world * len(value))
        state = {
            "updates": self.updates,
            "skipped_in_a_row": self.skipped_in_a_row,
            "optimizer": plain_state(self.optimizer, named),
        }
        save_checkpoint(folder, self.step, pieces, {**plain, "trainer": state}, self.dist)

    def restore(self, saved: Checkpoint) -> None:
        """Resume from a checkpoint of the same job, written by any number of processes."""
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
        rows = self.recipe.batch // self.dist.data_world // self.recipe.gradient_accumulation
        self.memory = []
        for i in range(self.recipe.gradient_accumulation):
            first = (self.dist.data_rank * self.recipe.gradient_accumulation + i) * rows

            def kept(name: str, first: int = first) -> Tensor:
                return saved.rows(f"memory/{name}", first, first + rows).to(self.dist.device)

            empty = self._language_model.init_memory(rows, self.recipe.memory)
            layers = tuple({key: kept(f"{n}/{key}") for key in layer} for n, layer in enumerate(empty.layers))
            self.memory.append(ModelState(layers, kept("pos")))

    def weights(self) -> dict[str, Tensor]:
        """All weights on the CPU; a tied matrix comes once. All processes must call it: sharded ones are gathered."""
        named: dict[str, Tensor] = dict(self.model.named_parameters())
        if self.dist.tensor > 1:
            named = {name: whole_of(parameter, parameter) for name, parameter in named.items()}
        return {name: whole(tensor).detach().cpu().contiguous() for name, tensor in named.items()}


def set_dropout(model: LanguageModel | Encoder, recipe: Recipe) -> None:
    model.backbone.dropout = recipe.dropout
    for module in model.modules():
        if isinstance(module, ResidualSum):
            module.dropout = recipe.dropout
        elif isinstance(module, Attention):
            module.dropout = recipe.attn_dropout


def seed_dropout(seed: int, step: int, rank: int, device: torch.device) -> None:
    # On a CPU torch.manual_seed notes the call stack for a GPU that may be used later: half a millisecond per step.
    seed_device = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
    seed_device(seed_of(f"dropout/{seed}/{step}/{rank}", size=7))


def detached(memory: ModelState) -> ModelState:
    layers = tuple({key: value.detach() for key, value in layer.items()} for layer in memory.layers)
    return ModelState(layers, memory.pos_B, memory.pad_B)


def _memory_tensors(parts: list[ModelState]) -> dict[str, Tensor]:
    """By layer and key, the rows of all parts in the order of the batch."""
    if not parts:
        return {}
    named = {
        f"{n}/{key}": torch.cat([memory.layers[n][key] for memory in parts])
        for n, layer in enumerate(parts[0].layers)
        for key in layer
    }
    return {**named, "pos": torch.cat([memory.pos_B for memory in parts])}


_POSITIONS = "backbone.position.weight"


def start_of(run: Run) -> Start:
    """The start for a job, from a finished run. An unfinished run is refused: its weights still change, so the same
    command would mean something else later."""
    if not (run.folder / WEIGHTS).exists():
        raise UserError(f"{run.name} has not finished: finish its training first.")
    return Start(run.folder, str(run.about["key"]), run.about.get("steps"))


def require_same_tokens(run: Run, corpus: Corpus) -> None:
    """`UserError` unless the corpus has the tokenizer that the run was trained with."""
    if run.tokenizer().as_dict() != corpus.tokenizer.as_dict():
        raise UserError(
            f"{corpus.name} is tokenised differently from what {run.name} was trained on; give the run's tokenizer "
            "with --tokenizer, or data with the same one."
        )


def load_start(model: LanguageModel | Encoder, start: Start) -> None:
    """Copy a run's weights into a model. Learned positions beyond the run's length keep their initial values; the head
    of next-sentence prediction is copied where both have one."""
    run = Run(start.folder)
    own = {name: p.detach() for name, p in model.named_parameters() if name.startswith(NEXT_SENTENCE)}
    weights = {
        name: value for name, value in run.weights().items() if name in own or not name.startswith(NEXT_SENTENCE)
    }
    weights = {**own, **weights}
    if model.arch.text != run.arch.text and model.backbone.position is not None and _POSITIONS in weights:
        ours, theirs = model.backbone.position.weight.detach(), weights[_POSITIONS]
        if len(theirs) < len(ours) and theirs.shape[1:] == ours.shape[1:]:
            weights = {**weights, _POSITIONS: torch.cat([theirs, ours[len(theirs) :].cpu()])}
    try:
        fill(model, weights, run.name)
    except UserError as wrong:
        raise UserError(f"the spec is not that of {run.name} ({run.arch.text}): {wrong}") from None
