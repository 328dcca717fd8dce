"""The adaptive softmax (Grave et al. 2017, arXiv:1609.04309): the output layer that belongs to adaptive embeddings
(`plait.model.backbone`), with the same clusters of the vocabulary. Its first cluster also scores one entry for each
later cluster, as in Transformer-XL.

Letters: B batch, T time, D model width, V vocabulary, N tokens in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from plait.model.backbone import AdaptiveEmbedding, cluster_bounds


class AdaptiveSoftmax(nn.Module):
    """Log-probabilities over clusters: head words and cluster entries first, then each later cluster given its entry.

    `tied` shares the tables with an `AdaptiveEmbedding`; the projections are its own.
    """

    def __init__(
        self, vocab: int, d: int, d_embed: int, cutoffs: Sequence[int], div: int, *, tied: AdaptiveEmbedding | None
    ) -> None:
        super().__init__()
        self.bounds = cluster_bounds(vocab, cutoffs)
        clusters = len(self.bounds) - 1
        widths = [max(1, d_embed // div**i) for i in range(len(self.bounds) if div > 1 else 1)]
        # With div = 1 one projection and one table of width d_embed serve every cluster, sliced at the cutoffs.
        self.single = div == 1
        self.projections = nn.ModuleList(
            nn.Linear(d, width, bias=False) if div > 1 or width != d else nn.Identity() for width in widths
        )
        spans = [(0, vocab)] if self.single else self.bounds
        self.tables = nn.ModuleList(
            nn.Embedding(last - first, width) for (first, last), width in zip(spans, widths, strict=True)
        )
        if tied is not None:
            for table, owner in zip(self.tables, tied.tables, strict=True):
                table.weight = owner.weight
        self.bias = nn.Parameter(torch.zeros(vocab))
        self.cluster_weight = nn.Parameter(torch.zeros(clusters, widths[0]))
        self.cluster_bias = nn.Parameter(torch.zeros(clusters))

    def _logits(self, cluster: int, x_ND: Tensor) -> Tensor:
        first, last = self.bounds[cluster]
        which = 0 if self.single else cluster
        inner: Tensor = self.projections[which](x_ND)
        weight = cast("Tensor", self.tables[which].weight)
        logits = F.linear(inner, weight[first:last] if self.single else weight, self.bias[first:last])
        if cluster == 0 and len(self.bounds) > 1:
            logits = torch.cat([logits, F.linear(inner, self.cluster_weight, self.cluster_bias)], dim=-1)
        return logits

    def forward(self, x_BTD: Tensor) -> Tensor:
        """Log-probabilities of the whole vocabulary, (B, T, V)."""
        head = F.log_softmax(self._logits(0, x_BTD), dim=-1)
        words = self.bounds[0][1]
        parts = [head[..., :words]]
        for cluster in range(1, len(self.bounds)):
            tail = F.log_softmax(self._logits(cluster, x_BTD), dim=-1)
            parts.append(tail + head[..., words + cluster - 1, None])
        return torch.cat(parts, dim=-1)

    def nll(self, x_ND: Tensor, targets_N: Tensor) -> Tensor:
        """Negative log-likelihood per token; a cluster's words are scored only for targets in it."""
        head = F.log_softmax(self._logits(0, x_ND), dim=-1)
        words = self.bounds[0][1]
        entry = targets_N.clamp(max=words - 1)
        for cluster, (first, last) in enumerate(self.bounds[1:], start=1):
            entry = torch.where((targets_N >= first) & (targets_N < last), words + cluster - 1, entry)
        nll_N = -head.gather(-1, entry[:, None])[:, 0]
        for cluster, (first, last) in enumerate(self.bounds[1:], start=1):
            (where,) = ((targets_N >= first) & (targets_N < last)).nonzero(as_tuple=True)
            tail = F.log_softmax(self._logits(cluster, x_ND[where]), dim=-1)
            inside = -tail.gather(-1, (targets_N[where] - first)[:, None])[:, 0]
            nll_N = nll_N.index_add(0, where, inside)
        return nll_N
