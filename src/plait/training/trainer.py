"""The model in training: its batches, optimizer steps and validation loss.

A step depends only on the state before it and on its number: batch, learning rate and dropout masks are all functions
of the number. So a run that is interrupted anywhere and resumed (`resume`) gives the same result as an uninterrupted
one. The validation loss does not depend on the number of processes.

Letters: B batch (of this process), T time; S streams of held-out text read side by side, N windows of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.core.progress import OnCount, silent
from plait.data import Corpus
from plait.data.stream import (
    PairRows,
    Pairs,
    Segments,
    Windows,
    mask_tokens,
    require_validation,
    segments,
    with_boundaries,
)
from plait.data.tokenizers import boundary_token
from plait.mixers.attn_module import Attention
from plait.model import build
from plait.model.architecture import Architecture
from plait.model.backbone import ModelState, ResidualSum
from plait.model.compiled_blocks import compile_blocks
from plait.model.language_model import IGNORE, Encoder, LanguageModel, Objective, add_next_sentence_head, seed_of
from plait.training.checkpoint import whole_of
from plait.training.distributed import Processes, whole
from plait.training.optimizer import make_optimizer, set_rate, update_on_device
from plait.training.recipe import Job, Recipe, rate
from plait.training.resume import load_start
from plait.training.tensor_parallel import cut_model

_HELD_OUT_SEED = 0  # seed of the masks of held-out batches
#: After so many steps in a row whose loss or gradient is infinite or NaN, a training has diverged.
MOST_SKIPPED = 20


@dataclass(frozen=True)
class Batch:
    tokens_BT: Tensor
    targets_BT: Tensor  # IGNORE where not scored
    fresh: bool = False  # clear the memory of earlier segments first
    segments_BT: Tensor | None = (
        None  # for pairs: which of the two texts a token belongs to, for models with segment embeddings
    )
    follows_B: Tensor | None = None  # for pairs: 1 if the second text follows the first
    scored_B: np.ndarray | None = None  # number of scored targets per row, known without waiting for the device

    @property
    def scored(self) -> int:
        return int((self.targets_BT != IGNORE).sum() if self.scored_B is None else self.scored_B.sum())

    def parts(self, count: int) -> list[Batch]:
        """Equal parts of the rows, in order."""

        def cut(rows: Tensor | None) -> Sequence[Tensor | None]:
            return [None] * count if rows is None else rows.chunk(count)

        columns = (
            self.tokens_BT.chunk(count),
            self.targets_BT.chunk(count),
            cut(self.segments_BT),
            cut(self.follows_B),
            [None] * count if self.scored_B is None else np.split(self.scored_B, count),
        )
        return [
            Batch(tokens, targets, self.fresh, segments, follows, scored_B)
            for tokens, targets, segments, follows, scored_B in zip(*columns, strict=True)
        ]


class Batches:
    """Training batches of one process."""

    def __init__(self, arch: Architecture, corpus: Corpus, recipe: Recipe, seed: int, dist: Processes) -> None:
        parts = dist.data_world * recipe.gradient_accumulation
        if recipe.batch % parts:
            raise UserError(
                f"batch={recipe.batch} does not divide into {dist.data_world} processes × "
                f"gradient_accumulation={recipe.gradient_accumulation}; choose a multiple of {parts}."
            )
        if recipe.memory and arch.header.kind != "lm":
            raise UserError(f"memory={recipe.memory} is for causal language models, not kind={arch.header.kind}.")
        self._masked = arch.header.kind == "encoder"
        if recipe.next_sentence and not self._masked:
            raise UserError(f"next_sentence=true is for kind=encoder, not kind={arch.header.kind}.")
        self._recipe, self._seed, self._among, self._corpus = recipe, seed, dist, corpus
        tokens = corpus.tokens("train")
        self._told_segments = arch.header.segments > 1
        self._pairs = Pairs(tokens, recipe.seq_len, recipe.batch, seed) if recipe.next_sentence else None
        self._windows = None if recipe.memory or self._pairs else Windows(tokens, recipe.seq_len, recipe.batch, seed)
        self._segments = Segments(tokens, recipe.seq_len, recipe.batch) if recipe.memory else None

    def __call__(self, step: int) -> Batch:
        rank, world = self._among.data_rank, self._among.data_world
        if self._segments is not None:
            # All rows start their part of the text at the same time.
            fresh = bool(self._segments.fresh(step)[0])
            return self._batch(*self._segments.rows(step, rank, world), fresh=fresh)
        if self._pairs is not None:
            return self._pair_batch(self._pairs.rows(step, rank, world), step)
        assert self._windows is not None
        inputs, targets = self._windows.rows(step, rank, world)
        if self._masked:
            inputs, targets = masked(inputs, self._corpus, self._recipe, self._seed, step, rank)
        return self._batch(inputs, targets)

    def _pair_batch(self, pairs: PairRows, step: int) -> Batch:
        """Texts are masked before boundary tokens are added, because boundaries are never predicted."""
        tokenizer, device = self._corpus.tokenizer, self._among.device
        inputs, targets = masked(pairs.texts_BN, self._corpus, self._recipe, self._seed, step, self._among.data_rank)
        batch = self._batch(
            with_boundaries(inputs, pairs.second_B, boundary_token(tokenizer)),
            with_boundaries(targets, pairs.second_B, IGNORE),
        )
        told = segments(pairs.second_B, self._recipe.seq_len) if self._told_segments else None
        return replace(
            batch,
            segments_BT=None if told is None else sent(told, device),
            follows_B=sent(pairs.follows_B.astype(np.int64), device),
        )

    def _batch(self, inputs: np.ndarray, targets: np.ndarray, fresh: bool = False) -> Batch:
        device = self._among.device
        scored_B = (targets != IGNORE).sum(1)
        return Batch(sent(inputs, device), sent(targets, device), fresh, scored_B=scored_B)


def sent(numbers: np.ndarray, device: torch.device) -> Tensor:
    """Copy an array to the device; for a GPU the copy is asynchronous."""
    here = torch.from_numpy(numbers)
    return here.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else here.to(device)


def masked(
    inputs: np.ndarray, corpus: Corpus, recipe: Recipe, seed: int = _HELD_OUT_SEED, step: int = 0, rank: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """The masked-language objective (Devlin et al. 2019, §3.1). The mask is the first id beyond the corpus's
    vocabulary."""
    return mask_tokens(
        inputs, vocab=corpus.vocab, mask_id=corpus.vocab, seed=seed, step=step, share=recipe.mask_share, rank=rank
    )


#: Batches of fewer tokens take as long; with a large vocabulary, this many logits still fit into memory during
#: training.
TOKENS_AT_ONCE = 1024


@dataclass(frozen=True)
class Validation:
    """Validation text: its first `most` tokens, in windows as long as those of the training."""

    corpus: Corpus
    recipe: Recipe
    kind: str
    most: int

    def loss(
        self, objective: nn.Module, model: nn.Module, dist: Processes, autocast: torch.autocast, share: float = 1.0,
        on_batch: OnCount = silent,
    ) -> float:  # fmt: skip
        """Mean nats per scored token, without dropout and auxiliary losses, over all windows or a fraction of them.
        `on_batch` is called after every batch, equally often in all processes, and may raise."""
        training = objective.training
        objective.eval()
        try:
            with torch.no_grad(), autocast:
                total = self._total(objective, model, dist, share, on_batch)
        finally:
            objective.train(training)
        nats, count = dist.sum(total).tolist()
        return float(nats / count)

    def _total(
        self, objective: nn.Module, model: nn.Module, dist: Processes, share: float, on_batch: OnCount
    ) -> Tensor:
        """Nats and scored tokens of this process's streams."""
        rows = max(1, self.recipe.batch // self.recipe.gradient_accumulation // dist.data_world)
        mine = slice(dist.data_rank * rows, (dist.data_rank + 1) * rows)
        inputs_SNT, targets_SNT = (part[mine] for part in self._streams(rows * dist.data_world, share))
        memory: ModelState | None = None
        together = 1
        if self.recipe.memory:
            assert isinstance(model, LanguageModel)
            memory = model.init_memory(rows, self.recipe.memory)
        else:
            # Windows are independent of each other, so a small batch takes several of each stream at once.
            together = max(1, TOKENS_AT_ONCE // (rows * self.recipe.seq_len))
        exact = torch.float32 if dist.device.type == "mps" else torch.float64  # Apple's GPUs have no float64
        total = torch.zeros(2, dtype=exact, device=dist.device)
        for n in range(0, inputs_SNT.shape[1], together):
            here = [part[:, n : n + together].reshape(-1, part.shape[-1]) for part in (inputs_SNT, targets_SNT)]
            tokens, targets = (sent(part, dist.device) for part in here)
            loss, memory = objective(tokens, targets, memory)
            if count := int((here[1] != IGNORE).sum()):
                total += torch.stack([loss.to(exact) * count, total.new_tensor(count)])
            on_batch(min(n + together, inputs_SNT.shape[1]), inputs_SNT.shape[1])
        return total

    def _streams(self, streams: int, share: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Each stream is a part of the text in order, so that memory carries over. A fraction of the windows is spread
        over the whole text. If there are fewer windows than streams, the last ones are not scored, so that all
        processes run the same number of forward passes."""
        length, tokens = self.recipe.seq_len, self.corpus.tokens("validation")
        windows = min(require_validation(self.corpus.name, tokens, length), max(1, self.most // length))
        wanted = max(1, round(share * windows))
        per_stream, used_streams = max(1, wanted // streams), min(wanted, streams)
        used, apart = per_stream * used_streams, windows // used_streams
        text = np.asarray(tokens[: windows * length + 1]).astype(np.int64)
        places = (np.arange(used_streams)[:, None] * apart + np.arange(per_stream)).reshape(-1)
        inputs, targets = text[:-1].reshape(-1, length)[places], text[1:].reshape(-1, length)[places]
        if self.kind == "encoder":
            inputs, targets = masked(inputs, self.corpus, self.recipe)
        missing = np.zeros((streams * per_stream - used, length), dtype=np.int64)
        shape = (streams, per_stream, length)
        return (
            np.concatenate([inputs, missing]).reshape(shape),
            np.concatenate([targets, missing + IGNORE]).reshape(shape),
        )


class Diverged(UserError):
    """The loss is infinite or NaN, and stays so."""

    def __init__(self, what: str, recipe: Recipe) -> None:
        clipping = "" if 0 < recipe.clip <= 1 else " or clipping (--set clip=1)"
        super().__init__(f"{what} Try a lower learning rate (--lr, now {recipe.lr:g}){clipping}.")


@dataclass(frozen=True)
class StepResult:
    """One optimizer step: its loss in nats, the gradient norm, and whether the update was applied."""

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
    numbers: Tensor  # loss, norm, whether the update was applied: being copied to the CPU
    ready: torch.cuda.Event | None

    def read(self) -> tuple[float, float, bool]:
        if self.ready is not None:
            self.ready.synchronize()
        loss, norm, stepped = self.numbers.tolist()
        return loss, norm, stepped > 0


class Trainer:
    """Model, optimizer and data of a training of `steps` steps, in one of its processes."""

    def __init__(
        self, job: Job, steps: int, dist: Processes, *, activation_checkpointing: bool = False, compiled: bool = False
    ) -> None:
        self.job, self.steps, self.dist, self.recipe = job, steps, dist, job.recipe
        # With tensor parallelism the model is split before it is moved to a GPU, which need not hold all of it.
        model = build(job.arch, seed=job.seed, device=dist.device if dist.tensor == 1 else "cpu")
        assert isinstance(model, (LanguageModel, Encoder))
        self.model = model
        if self.recipe.next_sentence and isinstance(model, Encoder):
            add_next_sentence_head(model, job.seed)
        if job.start is not None:
            load_start(model, job.start)
        self.note = ""  # which mixers are split over processes
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
        self.memory: list[ModelState] = []  # one per micro-batch
        self.compiled = False
        if compiled:
            self.compile()

    def compile(self) -> None:
        """Compile the blocks for all further steps."""
        if self.dist.sharded:
            raise UserError("--compile cannot be combined with fsdp or tensor parallelism; leave one of them out.")
        if self.recipe.memory:  # its shapes change with every segment at first
            self.objective.compile()
        else:
            dtype = torch.bfloat16 if self.job.precision == "bf16" else torch.float32
            compile_blocks(self.model.backbone, self.recipe.seq_len, dtype)
        self.compiled = True

    def advance(self) -> StepResult:
        """One optimizer step."""
        return self.wait(self.launch())

    def launch(self) -> PendingStep:
        """Launch one optimizer step; on a GPU this does not wait for it to finish."""
        lr = self.recipe.lr * rate(self.recipe, self.step, self.steps)
        set_rate(self.optimizer, lr)
        seed_dropout(self.job.seed, self.step, self.dist.data_rank, self.dist.device)
        loss = self._backward(self.batches(self.step))
        self.step += 1
        norm, stepped = update_on_device(self.optimizer, list(self.model.parameters()), self.recipe.clip, loss)
        exact = torch.float32 if loss.device.type == "mps" else torch.float64
        numbers = torch.stack([x.to(loss.device, exact) for x in (loss, norm, stepped)])
        ready: torch.cuda.Event | None = None
        if numbers.is_cuda:
            numbers, ready = numbers.to("cpu", non_blocking=True), torch.cuda.Event()
            ready.record()
        return PendingStep(self.step, lr, numbers, ready)

    def wait(self, pending: PendingStep) -> StepResult:
        """Wait for the result of a step; steps must be waited for in the order of their launches."""
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

    def validation_loss(self, share: float = 1.0, on_batch: OnCount = silent) -> float:
        """The loss on the validation text, or on a fixed fraction of its windows."""
        return self.validation.loss(self.objective, self.model, self.dist, self.autocast, share, on_batch)

    def _backward(self, batch: Batch) -> Tensor:
        """Compute gradients of the mean loss over the step's scored tokens in all processes and micro-batches; returns
        that loss."""
        parts = batch.parts(self.recipe.gradient_accumulation)
        all_scored: float | Tensor = float(batch.scored)
        if self.dist.data_world > 1:
            all_scored = self.dist.sum(torch.tensor(all_scored, device=self.dist.device))
        if self.recipe.memory and (batch.fresh or not self.memory):
            self.memory = [self._language_model.init_memory(len(part.tokens_BT), self.recipe.memory) for part in parts]
        total = torch.zeros((), device=self.dist.device)
        for i, part in enumerate(parts):
            # Gradients are averaged over processes, which have equally many rows, but not equally many scored tokens.
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
        """One micro-batch of one process as a fraction of all rows of a step."""
        return 1 / (self.dist.data_world * self.recipe.gradient_accumulation)

    @property
    def _language_model(self) -> LanguageModel:
        assert isinstance(self.model, LanguageModel)
        return self.model

    def weights(self) -> dict[str, Tensor]:
        """All weights on the CPU; tied matrices appear once. All processes must call this, because sharded weights are
        gathered."""
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
    # torch.manual_seed on a CPU records the call stack for a GPU that may be used later, which takes half a millisecond
    # per step.
    seed_device = torch.default_generator.manual_seed if device.type == "cpu" else torch.manual_seed
    seed_device(seed_of(f"dropout/{seed}/{step}/{rank}", size=7))


def detached(memory: ModelState) -> ModelState:
    layers = tuple({key: value.detach() for key, value in layer.items()} for layer in memory.layers)
    return ModelState(layers, memory.pos_B, memory.pad_B)
