"""What a model sees: at a step, a pure function of the step, with what is minimised on it; and held-out text to be
validated on.

A resumed run sees what it would have seen. The loss is behind one call, so that DDP, FSDP and the compiler see every
forward pass. The validation loss is the same whatever the number of processes; `perplexity_of` is exp(loss), and finite
even if a model has diverged.

Letters: B batch (of this process), T time; S streams of held-out text read side by side, N windows of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from plait.core.errors import UserError
from plait.data import Corpus
from plait.data.stream import PairRows, Pairs, Segments, Windows, mask_tokens, segments, with_boundaries
from plait.data.tokenizers import boundary_token
from plait.model.architecture import Architecture
from plait.model.backbone import ModelState
from plait.model.language_model import IGNORE, Encoder, LanguageModel, cross_entropy_of
from plait.training.distributed import Processes
from plait.training.recipe import Recipe

_HELD_OUT_SEED = 0  # seed of the masks of held-out batches


@dataclass(frozen=True)
class Batch:
    tokens_BT: Tensor
    targets_BT: Tensor  # IGNORE where not scored
    fresh: bool = False  # the memory of earlier segments is to be forgotten first
    segments_BT: Tensor | None = (
        None  # of pairs: which of the two texts a token belongs to, for models with segment embeddings
    )
    follows_B: Tensor | None = None  # of pairs: 1 where the second text follows the first
    scored_B: np.ndarray | None = None  # targets of each row that are scored: then the device need not be asked

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
            # All rows begin their stretch of the text at once.
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
    """The masked-language objective (Devlin et al. 2019, §3.1). The mask is the first id beyond the corpus's."""
    return mask_tokens(
        inputs, vocab=corpus.vocab, mask_id=corpus.vocab, seed=seed, step=step, share=recipe.mask_share, rank=rank
    )


class Objective(nn.Module):
    """Mean cross-entropy in nats over scored targets; while training, plus the mixers' own losses (load balancing)."""

    def __init__(self, model: LanguageModel | Encoder) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        memory: ModelState | None = None,
        segments_BT: Tensor | None = None,
        follows_B: Tensor | None = None,
        next_sentence_weight: float = 1.0,
    ) -> tuple[Tensor, ModelState | None]:
        if memory is not None:
            assert isinstance(self.model, LanguageModel)
            return self.model.loss_with_memory(tokens_BT, targets_BT, memory)
        if follows_B is not None:
            assert isinstance(self.model, Encoder)
            return self.model.loss(tokens_BT, targets_BT, segments_BT, follows_B, next_sentence_weight), None
        if self.training:
            return self.model.loss(tokens_BT, targets_BT), None
        if isinstance(self.model, LanguageModel):
            return self.model.score(self.model.backbone(tokens_BT), targets_BT), None
        hidden_BTD = self.model.transform(self.model.backbone(tokens_BT))
        return cross_entropy_of(self.model.output, hidden_BTD, targets_BT), None


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
