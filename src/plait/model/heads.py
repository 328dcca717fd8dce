"""The three kinds of model: language model, masked-language encoder, and the probe's auto-encoder.

Letters: B batch, T time, D width, V vocabulary, N scored tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.mixers.shared import make_norm
from plait.model.architecture import Architecture
from plait.model.backbone import Backbone, ModelState
from plait.model.embedding import AdaptiveSoftmax
from plait.ops.linear_cross_entropy import IGNORE as IGNORE
from plait.ops.linear_cross_entropy import linear_cross_entropy
from plait.ops.relative import sinusoid


def make_output(arch: Architecture, backbone: Backbone) -> nn.Module:
    """Hidden vectors to logits over the vocabulary: plain, tied or adaptive."""
    h = arch.header
    if h.embed == "adaptive":
        tied = backbone.embedding if h.tie else None
        return AdaptiveSoftmax(h.vocab, h.d, h.d_embed or h.d, h.cutoffs, h.div, tied=tied)
    output = nn.Linear(h.d, h.vocab, bias=h.head_bias)
    if h.tie:
        output.weight = backbone.embedding.first_table
    return output


def cross_entropy_of(output: nn.Module, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
    """Mean over targets that are not `IGNORE`; through a linear output layer without all logits in memory."""
    if type(output) is nn.Linear:  # not what was put in its place, as by an adapter or a quantizer
        hidden_ND, targets_N = hidden_BTD.flatten(0, -2), targets_BT.flatten()
        return linear_cross_entropy(hidden_ND, output.weight, targets_N, output.bias)
    return F.cross_entropy(output(hidden_BTD).flatten(0, -2), targets_BT.flatten(), ignore_index=IGNORE)


class LanguageModel(nn.Module):
    """Predicts each next token. The logits are log-probabilities under an adaptive softmax."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        self.arch = arch
        self.backbone = Backbone(arch)
        self.output = make_output(arch, self.backbone)

    def forward(self, tokens_BT: Tensor, *, pad_B: Tensor | None = None) -> Tensor:
        logits: Tensor = self.output(self.backbone(tokens_BT, pad_B=pad_B))
        return logits

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        """Mean cross-entropy in nats over targets that are not `IGNORE`, plus the mixers' own losses."""
        hidden_BTD, own = self.backbone.forward_with_loss(tokens_BT)
        return self.score(hidden_BTD, targets_BT) + own

    def loss_with_memory(self, tokens_BT: Tensor, targets_BT: Tensor, memory: ModelState) -> tuple[Tensor, ModelState]:
        """Cross-entropy of the next segment after a memory (`init_memory`), and the memory after it."""
        hidden_BTD, memory = self.backbone.extend(tokens_BT, memory)
        return self.score(hidden_BTD, targets_BT), memory

    def score(self, hidden_BTD: Tensor, targets_BT: Tensor) -> Tensor:
        if isinstance(self.output, AdaptiveSoftmax):
            # The adaptive softmax scores only the clusters that targets lie in; the full vocabulary is never formed.
            scored = targets_BT != IGNORE
            return self.output.nll(hidden_BTD[scored], targets_BT[scored]).mean()
        return cross_entropy_of(self.output, hidden_BTD, targets_BT)

    def init_state(self, batch: int, *, rollback: int = 0, pad_B: Tensor | None = None) -> ModelState:
        return self.backbone.init_state(batch, rollback=rollback, pad_B=pad_B)

    def init_memory(self, batch: int, tokens: int) -> ModelState:
        return self.backbone.init_memory(batch, tokens)

    def extend(self, tokens_BT: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        hidden_BTD, state = self.backbone.extend(tokens_BT, state)
        return self.output(hidden_BTD), state

    def step(self, tokens_B: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        hidden_BD, state = self.backbone.step(tokens_B, state)
        return self.output(hidden_BD), state

    def crop(self, state: ModelState, tokens: int) -> ModelState:
        return self.backbone.crop(state, tokens)

    def merge(self, states: Sequence[ModelState]) -> ModelState:
        return self.backbone.merge(states)


class Encoder(nn.Module):
    """Masked-language encoder (BERT, Devlin et al. 2019, arXiv:1810.04805): scores every position from both sides."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        h = arch.header
        self.arch = arch
        self.backbone = Backbone(arch)
        self.transform = nn.Sequential(nn.Linear(h.d, h.d), nn.GELU(), make_norm(h.norm, h.d, h.eps))
        self.output = make_output(arch, self.backbone)
        #: Does the second text of a pair follow the first? A training that asks adds it (`add_next_sentence_head`).
        self.next_sentence: nn.Module | None = None

    def forward(self, tokens_BT: Tensor, *, pad_B: Tensor | None = None, segments_BT: Tensor | None = None) -> Tensor:
        hidden_BTD = self.backbone(tokens_BT, pad_B=pad_B, segments_BT=segments_BT)
        logits: Tensor = self.output(self.transform(hidden_BTD))
        return logits

    def loss(
        self,
        tokens_BT: Tensor,
        targets_BT: Tensor,
        segments_BT: Tensor | None = None,
        follows_B: Tensor | None = None,
        next_sentence_weight: float = 1.0,
    ) -> Tensor:
        """Mean cross-entropy over the masked positions (targets that are not `IGNORE`); with `follows_B`, plus that of
        telling from the first position whether the second text follows the first."""
        hidden_BTD, own = self.backbone.forward_with_loss(tokens_BT, segments_BT)
        loss = cross_entropy_of(self.output, self.transform(hidden_BTD), targets_BT) + own
        if follows_B is None:
            return loss
        assert self.next_sentence is not None
        return loss + next_sentence_weight * F.cross_entropy(self.next_sentence(hidden_BTD[:, 0]), follows_B)


class AutoEncoder(nn.Module):
    """MAD's compression model (arXiv:2403.17844, App. B.1.5): the last position's vector, plus the sine-cosine code of
    the position asked for, must let a two-layer MLP recover that position's token."""

    def __init__(self, arch: Architecture) -> None:
        super().__init__()
        h = arch.header
        self.arch = arch
        self.backbone = Backbone(arch)
        self.decoder = nn.Sequential(nn.Linear(h.d, h.d), nn.GELU(), nn.Linear(h.d, h.vocab))

    def forward(self, tokens_BT: Tensor) -> Tensor:
        return self.decode(self.backbone(tokens_BT))

    def decode(self, hidden_BTD: Tensor) -> Tensor:
        asked_TD = sinusoid(torch.arange(hidden_BTD.shape[1], device=hidden_BTD.device), hidden_BTD.shape[-1])
        logits: Tensor = self.decoder(hidden_BTD[:, -1:] + asked_TD.to(hidden_BTD.dtype))
        return logits

    def loss(self, tokens_BT: Tensor, targets_BT: Tensor) -> Tensor:
        hidden_BTD, own = self.backbone.forward_with_loss(tokens_BT)
        return F.cross_entropy(self.decode(hidden_BTD).flatten(0, 1), targets_BT.flatten(), ignore_index=IGNORE) + own
