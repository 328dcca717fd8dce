"""Fine-tuning: a pretrained backbone, one linear head, AdamW with warm-up and linear decay (BERT, Devlin et al. 2019,
arXiv:1810.04805, appendix A.3). As in a training, batch, learning rate and dropout masks of a step depend on its number
only, so an interrupted fine-tuning resumes from a checkpoint to the same result.

An encoder is bidirectional, so its rows are padded on the left, where its attention masks the padding; a language model
is causal, so its rows are padded on the right.

Letters: B batch, T time, D width, C outputs of the head.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.core.files import understood
from plait.core.progress import OnCount, Stopped, stop_signals
from plait.core.registry import require_setting
from plait.model.language_model import Encoder, LanguageModel
from plait.training.checkpoint import newest_checkpoint, save_checkpoint
from plait.training.distributed import Processes
from plait.training.fit import SAVE_SECONDS
from plait.training.optimizer import make_optimizer, set_rate, update
from plait.training.recipe import Recipe, rate
from plait.training.resume import restore_training, training_state
from plait.training.trainer import seed_dropout

#: Number of batches sorted by length together: little padding, and batches still differ every epoch.
SORTED_TOGETHER = 16


@dataclass(frozen=True)
class Plan:
    epochs: int = 3
    lr: float = 3e-5
    batch: int = 32
    warmup: float = 0.1  # fraction of the steps
    weight_decay: float = 0.01
    clip: float = 1.0
    dropout: float = 0.1  # before the head
    max_len: int = 128  # tokens of a row
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("epochs", 1), ("batch", 1), ("max_len", 8)):
            require_setting(self, name, getattr(self, name) >= least, f"must be at least {least}")
        require_setting(self, "lr", 0 < self.lr < math.inf, "must be a positive number")

    @property
    def recipe(self) -> Recipe:
        """The optimizer and the learning rate as a recipe of `plait.training`."""
        return Recipe(
            batch=self.batch, seq_len=self.max_len, lr=self.lr, schedule="linear", warmup=self.warmup, beta2=0.999,
            eps=1e-6, weight_decay=self.weight_decay, clip=self.clip,
        )  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One input of the backbone: tokens, and which of two texts each of them belongs to."""

    tokens: list[int]
    segments: list[int]

    def __len__(self) -> int:
        return len(self.tokens)


Item = TypeVar("Item")


class TunedModel(nn.Module):
    """A copy of a model's backbone under a new linear head."""

    def __init__(self, model: LanguageModel | Encoder, outputs: int, plan: Plan) -> None:
        super().__init__()
        if not isinstance(model, LanguageModel | Encoder):
            raise UserError(f"fine-tuning takes kind=lm or kind=encoder, not kind={model.arch.header.kind}.")
        header = model.arch.header
        if header.pos == "learned" and plan.max_len > header.max_len:
            raise UserError(f"max_len={plan.max_len}: the model has max_len={header.max_len} learned positions.")
        self.backbone = copy.deepcopy(model.backbone)
        self.two_way = isinstance(model, Encoder)
        self.dropout = nn.Dropout(plan.dropout)
        self.device = next(model.parameters()).device
        with torch.random.fork_rng(devices=[]):  # initialising it must not consume the caller's random numbers
            self.head = nn.Linear(header.d, outputs)
        stream = torch.Generator().manual_seed(plan.seed)
        with torch.no_grad():
            self.head.weight.copy_(torch.randn(self.head.weight.shape, generator=stream) * 0.02)
            self.head.bias.zero_()
        self.to(self.device)

    def hidden(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor]:
        """Hidden vectors, and the index of each row's first token in them."""
        width = max(map(len, rows))
        pads = [width - len(row) for row in rows]
        pad_B = torch.tensor(pads, device=self.device)
        tokens_BT = self._padded([row.tokens for row in rows], pads)
        if not self.two_way:
            return self.backbone(tokens_BT), torch.zeros_like(pad_B)
        kinds = self.backbone.segment.num_embeddings if self.backbone.segment is not None else 0
        segments_BT = self._padded([row.segments for row in rows], pads).clamp(max=kinds - 1) if kinds else None
        return self.backbone(tokens_BT, pad_B=pad_B if any(pads) else None, segments_BT=segments_BT), pad_B

    def classify(self, rows: Sequence[Row]) -> Tensor:
        """(B, C) logits at the position that has seen the whole row: an encoder's first, a language model's last."""
        hidden_BTD, first_B = self.hidden(rows)
        lengths_B = torch.tensor([len(row) for row in rows], device=self.device)
        at_B = first_B if self.two_way else lengths_B - 1
        pooled_BD = hidden_BTD[torch.arange(len(rows), device=self.device), at_B]
        logits_BC: Tensor = self.head(self.dropout(pooled_BD))
        return logits_BC

    def tag(self, rows: Sequence[Row]) -> Tensor:
        """(B, T, C) logits of every token, each row starting at its first token; -inf beyond the end of a row."""
        hidden_BTD, first_B = self.hidden(rows)
        logits_BTC = self.head(self.dropout(hidden_BTD))
        place_T = torch.arange(hidden_BTD.shape[1], device=self.device)
        lengths_B = torch.tensor([len(row) for row in rows], device=self.device)
        at_BT = (place_T + first_B[:, None]).clamp(max=hidden_BTD.shape[1] - 1)
        from_first_BTC = logits_BTC.gather(1, at_BT[:, :, None].expand(-1, -1, logits_BTC.shape[-1]))
        ended_BT = place_T >= lengths_B[:, None]
        masked_BTC: Tensor = from_first_BTC.masked_fill(ended_BT[:, :, None], -torch.inf)
        return masked_BTC

    def _padded(self, rows: Sequence[list[int]], pads: Sequence[int]) -> Tensor:
        empty = [[0] * pad for pad in pads]
        both = zip(empty, rows, strict=True) if self.two_way else zip(rows, empty, strict=True)
        return torch.tensor([a + b for a, b in both], device=self.device)


def tune(
    model: TunedModel,
    items: Sequence[Item],
    length: Callable[[Item], int],
    loss: Callable[[Sequence[Item]], Tensor],
    plan: Plan,
    progress: OnCount,
    folder: Path,
) -> None:
    """Train a model in place, without changing the caller's random state. Checkpoints are kept in the `folder`: the
    newest one is resumed from, and after a signal to stop one is saved and `Stopped` raised."""
    recipe, steps = plan.recipe, plan.epochs * math.ceil(len(items) / plan.batch)
    optimizer = make_optimizer(model, recipe)
    alone = Processes(0, 1, model.device)
    done = 0
    if (saved := newest_checkpoint(folder)) is not None:
        done = saved.step
        with understood(f"{folder.name}/{saved.folder.name}", "Remove that folder to resume from the previous one."):
            restore_training(model, optimizer, saved, saved.plain["optimizer"], done, alone)
    order = torch.Generator().manual_seed(plan.seed)
    batches = (batch for _ in range(plan.epochs) for batch in _shuffled(items, length, plan.batch, order))
    devices = [model.device] if model.device.type == "cuda" else []
    last_save = time.perf_counter()
    model.train()
    with torch.random.fork_rng(devices=devices), stop_signals() as asked:
        for batch in islice(batches, done, None):
            set_rate(optimizer, recipe.lr * rate(recipe, done, steps))
            seed_dropout(plan.seed, done, 0, model.device)
            value = loss(batch)
            value.backward()
            norm, updated = update(optimizer, model.parameters(), recipe.clip, value.item())
            if not updated:
                what = f"the loss is {value.item():.4g}, the norm of its gradient {norm:.4g}"
                raise UserError(f"{what} at step {done + 1} of {steps}; lower lr={plan.lr}.")
            done += 1
            progress(done, steps)
            stop, due = asked.is_set(), time.perf_counter() - last_save > SAVE_SECONDS
            if stop or due or done == steps:  # at the end, because scoring may take long
                pieces, plain = training_state(model, optimizer, alone)
                save_checkpoint(folder, done, pieces, {"optimizer": plain}, alone)
                last_save = time.perf_counter()
            if stop:
                raise Stopped(f"seed {plan.seed} is saved at step {done} of {steps}")
    model.eval()


def _shuffled(
    items: Sequence[Item], length: Callable[[Item], int], batch: int, order: torch.Generator
) -> Iterator[list[Item]]:
    shuffled = torch.randperm(len(items), generator=order).tolist()
    batches = []
    for start in range(0, len(items), batch * SORTED_TOGETHER):
        together = sorted(shuffled[start : start + batch * SORTED_TOGETHER], key=lambda index: length(items[index]))
        batches += [together[i : i + batch] for i in range(0, len(together), batch)]
    for which in torch.randperm(len(batches), generator=order).tolist():
        yield [items[index] for index in batches[which]]


@torch.inference_mode()
def in_order(rows: Sequence[Row], batch: int, scores: Callable[[Sequence[Row]], Tensor]) -> list[Tensor]:
    """The logits of every row, in the order of the rows; rows of similar length are batched together."""
    logits: dict[int, Tensor] = {}
    by_length = sorted(range(len(rows)), key=lambda index: len(rows[index]))
    for start in range(0, len(rows), batch):
        chosen = by_length[start : start + batch]
        values = scores([rows[index] for index in chosen]).float().cpu()
        logits.update(zip(chosen, values, strict=True))
    return [logits[index] for index in range(len(rows))]
