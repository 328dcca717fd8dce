"""The loss on text the model has not seen, the same whatever the number of processes.

Letters: S streams read side by side, N windows of each, T time.

`perplexity_of` is exp(loss), and finite even if a model has diverged.
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
from plait.training.batches import masked, sent
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

    def loss(
        self, objective: nn.Module, model: nn.Module, dist: Processes, autocast: torch.autocast, share: float = 1.0
    ) -> float:
        """Mean nats per scored token, without dropout and auxiliary losses; of all windows, or of a share of them."""
        training = objective.training
        objective.eval()
        try:
            with torch.no_grad(), autocast:
                total = self._total(objective, model, dist, share)
        finally:
            objective.train(training)
        nats, count = dist.sum(total).tolist()
        return float(nats / count)

    def _total(self, objective: nn.Module, model: nn.Module, dist: Processes, share: float) -> Tensor:
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
            # Windows do not depend on each other: a small batch takes several of each stream at once.
            together = max(1, TOKENS_AT_ONCE // (rows * self.recipe.seq_len))
        exact = torch.float32 if dist.device.type == "mps" else torch.float64  # which Apple's GPUs lack
        total = torch.zeros(2, dtype=exact, device=dist.device)
        for n in range(0, inputs_SNT.shape[1], together):
            here = [part[:, n : n + together].reshape(-1, part.shape[-1]) for part in (inputs_SNT, targets_SNT)]
            tokens, targets = (sent(part, dist.device) for part in here)
            loss, memory = objective(tokens, targets, memory)
            if count := int((here[1] != IGNORE).sum()):
                total += torch.stack([loss.to(exact) * count, total.new_tensor(count)])
        return total

    def _streams(self, streams: int, share: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Each stream a stretch of text in order, so that memory carries over. A share of the windows is spread over
        the whole text. Where there are fewer windows than streams, the last ones are unscored: all processes run
        forward equally often."""
        length, tokens = self.recipe.seq_len, self.corpus.tokens("validation")
        windows = min((len(tokens) - 1) // length, max(1, self.most // length))
        if windows < 1:
            raise UserError(f"{len(tokens)} held-out tokens are fewer than one sequence of {length}.")
        wanted = max(1, round(share * windows))
        each, used_streams = max(1, wanted // streams), min(wanted, streams)
        used, apart = each * used_streams, windows // used_streams
        text = np.asarray(tokens[: windows * length + 1]).astype(np.int64)
        places = (np.arange(used_streams)[:, None] * apart + np.arange(each)).reshape(-1)
        inputs, targets = text[:-1].reshape(-1, length)[places], text[1:].reshape(-1, length)[places]
        if self.kind == "encoder":
            inputs, targets = masked(inputs, self.corpus, self.recipe)
        missing = np.zeros((streams * each - used, length), dtype=np.int64)
        shape = (streams, each, length)
        return (
            np.concatenate([inputs, missing]).reshape(shape),
            np.concatenate([targets, missing + IGNORE]).reshape(shape),
        )


MOST_NATS = 700.0  # the exponential of more nats is not a finite number


def perplexity_of(nats: float) -> float:
    return float(perplexities(nats))


def perplexities(nats: ArrayLike) -> NDArray[np.float64]:
    """Perplexities of many losses."""
    return np.asarray(np.exp(np.minimum(np.asarray(nats, dtype=np.float64), MOST_NATS)))
