"""What stands outside the layers and what it costs: embeddings, positions, output layer; their bands where adaptive.

An adaptive softmax (Grave et al. 2017, arXiv:1609.04309) is fast because most targets lie in its first band: the words
of a later band are scored only where a target lies in it. What it costs therefore depends on how often words occur.
They are taken to occur as English words do, Zipf's law with two regimes (Gerlach and Altmann 2013, arXiv:1212.1362):
the word of rank r with probability ∝ 1 / r among the first 7873, ∝ 1 / r^1.77 beyond, without a jump between. Of
WikiText-103's 267,735 words, cut at 19997/39997/199997, that puts 94.9, 2.4, 2.5 and 0.2 % of all tokens in the bands.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise

from plait.mixers.cost import linear
from plait.spec import Header

#: The two parameters of Zipf's law for English: the number of core words, and the exponent beyond them.
CORE, EXPONENT = 7873, 1.77


def norm_params(header: Header) -> int:
    return header.d if header.norm == "rms" else 2 * header.d


def params(h: Header) -> dict[str, int]:
    """Parameters outside the layers, part by part, as `plait.model.embedding` and `plait.model.heads` build them."""
    parts = {"final norm": norm_params(h) if h.final_norm else 0, "token embedding": _embedding_params(h)}
    if h.pos == "learned":
        parts["positions"] = h.max_len * h.d
    if h.segments:
        parts["segments"] = h.segments * h.d
    if h.embed_norm:
        parts["embedding norm"] = norm_params(h)
    if h.kind == "encoder":
        parts["output transform"] = linear(h.d, h.d, bias=True) + norm_params(h)
    if h.kind == "autoencoder":
        parts["output"] = linear(h.d, h.d, bias=True) + linear(h.d, h.vocab, bias=True)
    else:
        parts["output"] = _output_params(h)
    return parts


def tied_params(h: Header) -> int:
    """Parameters that embedding and output layer share; an auto-encoder's output is its own."""
    return sum(words * width for words, width in _tables(h)) if h.tie and h.kind != "autoencoder" else 0


@cache
def shares(vocab: int, cutoffs: tuple[int, ...]) -> tuple[float, ...]:
    """The share of all tokens that lies in each band, the most frequent words first."""
    masses = [_mass(last) for last in (*cutoffs, vocab)]
    return tuple((last - first) / masses[-1] for first, last in pairwise([0.0, *masses]))


def input_flops(h: Header, seq: int) -> int:
    """Projecting the embeddings to d, each token by its band's projection."""
    tables = _tables(h)
    expected = shares(h.vocab, h.cutoffs) if len(tables) > 1 else (1.0,)
    widths = [share * width for share, (_, width) in zip(expected, tables, strict=True) if _projected(h, width)]
    return round(2 * seq * h.d * sum(widths))


def output_flops(h: Header, seq: int) -> int:
    """Scoring the targets: with bands in a language model, the first band everywhere and a later one where its targets
    are. An encoder scores the whole vocabulary."""
    if h.embed == "plain" or h.kind != "lm":
        return full_output_flops(h, seq)
    first, *later = (2 * seq * size for size in _band_products(h))
    expected = shares(h.vocab, h.cutoffs)[1:]
    return round(first + sum(share * size for share, size in zip(expected, later, strict=True)))


def full_output_flops(h: Header, seq: int) -> int:
    """Scoring every word of the vocabulary."""
    if h.kind == "autoencoder":
        return 2 * seq * (h.d * h.d + h.d * h.vocab)
    transform = 2 * seq * h.d * h.d if h.kind == "encoder" else 0
    if h.embed == "plain":
        return transform + 2 * seq * h.d * h.vocab
    return transform + 2 * seq * sum(_band_products(h))


def _band_products(h: Header) -> list[int]:
    """Multiply-adds of one token's logits in each band: its projection (with div = 1 one serves all, but is applied
    again for each), its words, and in the first band one entry for each later one."""
    edges = (0, *h.cutoffs, h.vocab)
    widths = [max(1, (h.d_embed or h.d) // h.div**i) for i in range(len(edges) - 1)]
    words = [last - first for first, last in pairwise(edges)]
    words[0] += len(h.cutoffs)
    return [
        count * width + (width * h.d if _projected(h, width) else 0) for count, width in zip(words, widths, strict=True)
    ]


def _mass(words: int) -> float:
    """How often the first `words` words occur, in units of the first."""
    core = sum(1 / rank for rank in range(1, min(words, CORE) + 1))
    if words <= CORE:
        return core
    # The sum over ranks as an integral between half ranks: exact to 1e-9 out here.
    slope = EXPONENT - 1
    beyond: float = CORE**slope / slope * ((CORE + 0.5) ** -slope - (words + 0.5) ** -slope)
    return core + beyond


def _tables(h: Header) -> list[tuple[int, int]]:
    """(words, width) of every band that has a table of its own."""
    edges = [0, *(h.cutoffs if h.div > 1 else ()), h.vocab]
    sizes = [last - first for first, last in pairwise(edges)]
    return [(words, max(1, (h.d_embed or h.d) // h.div**i)) for i, words in enumerate(sizes)]


def _projected(h: Header, width: int) -> bool:
    return h.div > 1 or width != h.d


def _embedding_params(h: Header) -> int:
    return sum(words * width + (width * h.d if _projected(h, width) else 0) for words, width in _tables(h))


def _output_params(h: Header) -> int:
    if h.embed == "plain":
        return (0 if h.tie else h.d * h.vocab) + (h.vocab if h.head_bias else 0)
    tables = _tables(h)
    own = 0 if h.tie else sum(words * width for words, width in tables)
    projections = sum(width * h.d for _, width in tables if _projected(h, width))
    entries = len(h.cutoffs) * (tables[0][1] + 1)
    return own + projections + h.vocab + entries
