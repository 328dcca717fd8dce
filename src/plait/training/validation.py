"""The loss on text the model has not seen, the same whatever the number of processes.

Letters: S streams read side by side, N windows of each, T time.

Perplexity: what a loss in nats per token comes to, a number even where a model has diverged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.data import Corpus
from plait.model.backbone import ModelState
from plait.model.heads import IGNORE, LanguageModel
from plait.training.batches import masked, scored
from plait.training.distributed import Processes
from plait.training.recipe import Recipe

#: A batch of fewer tokens costs as much time; of a large vocabulary, this many logits still fit beside a training.
TOKENS_AT_ONCE = 1024


@dataclass(frozen=True)
class Validation:
    """Validation text: its first `most` tokens, in windows as long as those of the training."""

    corpus: Corpus
    recipe: Recipe
    kind: str
    most: int

    def loss(self, objective: nn.Module, model: nn.Module, dist: Processes, autocast: torch.autocast) -> float:
        """Mean nats a scored token, without dropout and the mixers' own losses."""
        training = objective.training
        objective.eval()
        try:
            with torch.no_grad(), autocast:
                total = self._total(objective, model, dist)
        finally:
            objective.train(training)
        nats, count = dist.sum(total).tolist()
        return float(nats / count)

    def _total(self, objective: nn.Module, model: nn.Module, dist: Processes) -> Tensor:
        """Nats and scored tokens of this process's streams."""
        rows = max(1, self.recipe.batch // self.recipe.gradient_accumulation // dist.world)
        mine = slice(dist.rank * rows, (dist.rank + 1) * rows)
        inputs_SNT, targets_SNT = (part[mine] for part in self._streams(rows * dist.world))
        memory: ModelState | None = None
        together = 1
        if self.recipe.memory:
            assert isinstance(model, LanguageModel)
            memory = model.init_memory(rows, self.recipe.memory)
        else:
            # Windows do not depend on each other: a small batch takes several of each stream at once.
            together = max(1, TOKENS_AT_ONCE // (rows * self.recipe.seq_len))
        total = torch.zeros(2, dtype=torch.float64, device=dist.device)
        for n in range(0, inputs_SNT.shape[1], together):
            tokens, targets = (
                torch.from_numpy(part[:, n : n + together].reshape(-1, part.shape[-1])).to(dist.device)
                for part in (inputs_SNT, targets_SNT)
            )
            loss, memory = objective(tokens, targets, memory)
            if count := scored(targets):
                total += torch.tensor([float(loss) * count, count], dtype=torch.float64, device=dist.device)
        return total

    def _streams(self, streams: int) -> tuple[np.ndarray, np.ndarray]:
        """Each stream a stretch of text in order, so that memory carries over. Where there are fewer windows than
        streams, the last ones are unscored: all processes run forward equally often."""
        length, tokens = self.recipe.seq_len, self.corpus.tokens("validation")
        windows = min((len(tokens) - 1) // length, max(1, self.most // length))
        if windows < 1:
            raise UserError(f"{len(tokens)} held-out tokens are fewer than one sequence of {length}.")
        each = max(1, windows // streams)
        used = min(windows, each * streams)
        text = np.asarray(tokens[: used * length + 1]).astype(np.int64)
        inputs, targets = text[:-1].reshape(used, length), text[1:].reshape(used, length)
        if self.kind == "encoder":
            inputs, targets = masked(inputs, self.corpus, self.recipe)
        missing = np.zeros((streams * each - used, length), dtype=np.int64)
        shape = (streams, each, length)
        return (
            np.concatenate([inputs, missing]).reshape(shape),
            np.concatenate([targets, missing + IGNORE]).reshape(shape),
        )


MOST_NATS = 700.0  # beyond, it would not be a number that JSON holds


def perplexity_of(nats: float) -> float:
    return float(perplexities(nats))


def perplexities(nats: ArrayLike) -> NDArray[np.float64]:
    """Of many losses at once."""
    return np.asarray(np.exp(np.minimum(np.asarray(nats, dtype=np.float64), MOST_NATS)))
