"""Adaptive embedding and softmax against one token at a time, computed the slow way."""

from __future__ import annotations

import pytest
import torch

from plait.model.adaptive_softmax import AdaptiveSoftmax
from plait.model.backbone import AdaptiveEmbedding, cluster_bounds

VOCAB, D, CUTOFFS = 30, 12, (5, 14)
SHAPES = [(12, 1), (8, 1), (12, 2), (8, 2), (8, 4), (12, 4)]  # (d_embed, div)


def cluster_of(token: int) -> int:
    return sum(token >= edge for edge in CUTOFFS)


def randomise(module: torch.nn.Module) -> None:
    stream = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=stream, dtype=torch.float64)


def embed_slowly(embedding: AdaptiveEmbedding, token: int, div: int) -> torch.Tensor:
    cluster = cluster_of(token) if div > 1 else 0
    first = (0, *CUTOFFS)[cluster]
    vector = embedding.tables[cluster].weight[token - first]
    projection = embedding.projections[cluster]
    return vector if isinstance(projection, torch.nn.Identity) else projection.weight @ vector


def log_prob_slowly(softmax: AdaptiveSoftmax, x_D: torch.Tensor, token: int, div: int) -> torch.Tensor:
    """log P(head entry) for a frequent word, log P(cluster) + log P(word | cluster) for another."""
    edges = (0, *CUTOFFS, VOCAB)

    def words(cluster: int) -> torch.Tensor:
        which = cluster if div > 1 else 0
        projection = softmax.projections[which]
        inner = x_D if isinstance(projection, torch.nn.Identity) else projection.weight @ x_D
        table = softmax.tables[which].weight
        rows = table if div > 1 else table[edges[cluster] : edges[cluster + 1]]
        scores = rows @ inner + softmax.bias[edges[cluster] : edges[cluster + 1]]
        if cluster:
            return scores
        return torch.cat([scores, softmax.cluster_weight @ inner + softmax.cluster_bias])

    cluster, head = cluster_of(token), words(0)
    if not cluster:
        return head[token] - head.logsumexp(0)
    tail = words(cluster)
    entry = head[CUTOFFS[0] + cluster - 1] - head.logsumexp(0)
    return entry + tail[token - edges[cluster]] - tail.logsumexp(0)


def test_bounds_split_the_vocabulary() -> None:
    assert cluster_bounds(30, (5, 14)) == [(0, 5), (5, 14), (14, 30)]
    assert cluster_bounds(30, ()) == [(0, 30)]


@pytest.mark.parametrize(("d_embed", "div"), SHAPES)
def test_embedding_is_the_tables_row_projected(d_embed: int, div: int) -> None:
    embedding = AdaptiveEmbedding(VOCAB, D, d_embed, CUTOFFS, div)
    randomise(embedding)
    tokens = torch.arange(VOCAB).flip(0).view(3, 10)
    expected = torch.stack([embed_slowly(embedding, int(token), div) for token in tokens.flatten()])
    torch.testing.assert_close(embedding(tokens), expected.view(3, 10, D))
    assert [table.weight.shape[1] for table in embedding.tables] == [
        max(1, d_embed // div**i) for i in range(3 if div > 1 else 1)
    ]


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(("d_embed", "div"), SHAPES)
def test_softmax_is_the_product_of_its_choices(d_embed: int, div: int, tied: bool) -> None:
    embedding = AdaptiveEmbedding(VOCAB, D, d_embed, CUTOFFS, div)
    softmax = AdaptiveSoftmax(VOCAB, D, d_embed, CUTOFFS, div, tied=embedding if tied else None)
    randomise(softmax)
    shared = [ours.weight is theirs.weight for ours, theirs in zip(softmax.tables, embedding.tables, strict=True)]
    assert shared == [tied] * len(shared)
    x_ND = 0.3 * torch.randn(4, D, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = torch.stack([torch.stack([log_prob_slowly(softmax, x, v, div) for v in range(VOCAB)]) for x in x_ND])
    torch.testing.assert_close(softmax(x_ND[None])[0], expected)
    targets = torch.tensor([3, 29, 5, 13])
    torch.testing.assert_close(softmax.nll(x_ND, targets), -expected[torch.arange(4), targets])


def test_likelihood_of_frequent_words_alone() -> None:
    """No target in a later cluster: nothing of it is scored, and the gradient still flows."""
    softmax = AdaptiveSoftmax(VOCAB, D, 8, CUTOFFS, 2, tied=None)
    randomise(softmax)
    x_ND = torch.randn(3, D, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    nll = softmax.nll(x_ND, torch.tensor([0, 4, 2]))
    torch.testing.assert_close(nll, -softmax(x_ND[None])[0].gather(1, torch.tensor([[0], [4], [2]]))[:, 0])
    nll.sum().backward()
    assert x_ND.grad is not None
    assert x_ND.grad.abs().sum() > 0


def test_without_clusters_it_is_one_table() -> None:
    embedding = AdaptiveEmbedding(VOCAB, D, D, (), 1)
    tokens = torch.tensor([[0, 29, 7]])
    assert torch.equal(embedding(tokens), embedding.first_table[tokens])
    assert sum(p.numel() for p in embedding.parameters()) == VOCAB * D
