"""The cost of a whole model, computed from its architecture without torch in microseconds: parameters, FLOPs, state.

`decoder` counts the layers and the final norm, `embedding` everything that grows with the vocabulary or the longest
sequence (input tables, output layer, positions), as in LiteTransformerSearch. Tied tables count once.

An adaptive softmax (Grave et al. 2017, arXiv:1609.04309) is fast because most targets are in its first band: the words
of a later band are scored only for targets in it, so the cost depends on word frequencies. These are assumed to be
those of English, by Zipf's law with two regimes (Gerlach and Altmann 2013, arXiv:1212.1362): the word of rank r with
probability ∝ 1 / r among the first 7873, ∝ 1 / r^1.77 beyond, without a jump between. Of WikiText-103's 267,735 words,
cut at 19997/39997/199997, that puts 94.9, 2.4, 2.5 and 0.2 % of all tokens in the bands.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any

from plait.core.registry import load_attribute
from plait.core.result import card, text_table
from plait.mixers.options import Cost, MixerOptions, Number, linear
from plait.model.architecture import Architecture, architecture
from plait.spec import Header, Spec

#: The two parameters of Zipf's law for English: the number of core words, and the exponent for all others.
CORE, EXPONENT = 7873, 1.77


def norm_params(header: Header) -> int:
    return header.d if header.norm == "rms" else 2 * header.d


def params(h: Header) -> dict[str, int]:
    """Parameters outside the layers, by part, as built by `model.embedding` and `model.language_model`."""
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
    """The fraction of all tokens in each band, the most frequent words first."""
    masses = [_mass(last) for last in (*cutoffs, vocab)]
    return tuple((last - first) / masses[-1] for first, last in pairwise([0.0, *masses]))


def input_flops(h: Header, seq: int) -> int:
    """FLOPs of projecting the embeddings to d, each token by its band's projection."""
    tables = _tables(h)
    expected = shares(h.vocab, h.cutoffs) if len(tables) > 1 else (1.0,)
    widths = [share * width for share, (_, width) in zip(expected, tables, strict=True) if _projected(h, width)]
    return round(2 * seq * h.d * sum(widths))


def output_flops(h: Header, seq: int) -> int:
    """FLOPs of scoring the targets: with bands in a language model, the first band for every token and a later one only
    for its targets. An encoder scores the whole vocabulary."""
    if h.embed == "plain" or h.kind != "lm":
        return full_output_flops(h, seq)
    first, *later = (2 * seq * size for size in _band_products(h))
    expected = shares(h.vocab, h.cutoffs)[1:]
    return round(first + sum(share * size for share, size in zip(expected, later, strict=True)))


def full_output_flops(h: Header, seq: int) -> int:
    """FLOPs of scoring every word of the vocabulary."""
    if h.kind == "autoencoder":
        return 2 * seq * (h.d * h.d + h.d * h.vocab)
    transform = 2 * seq * h.d * h.d if h.kind == "encoder" else 0
    if h.embed == "plain":
        return transform + 2 * seq * h.d * h.vocab
    return transform + 2 * seq * sum(_band_products(h))


def _band_products(h: Header) -> list[int]:
    """Multiply-adds of one token's logits in each band: the projection (with div = 1 all bands share one, but each
    applies it again), the words and, in the first band, one entry for each later band."""
    edges = (0, *h.cutoffs, h.vocab)
    widths = [max(1, (h.d_embed or h.d) // h.div**i) for i in range(len(edges) - 1)]
    words = [last - first for first, last in pairwise(edges)]
    words[0] += len(h.cutoffs)
    return [
        count * width + (width * h.d if _projected(h, width) else 0) for count, width in zip(words, widths, strict=True)
    ]


def _mass(words: int) -> float:
    """Cumulative frequency of the first `words` words, relative to the most frequent one."""
    core = sum(1 / rank for rank in range(1, min(words, CORE) + 1))
    if words <= CORE:
        return core
    # The sum over ranks as an integral between half ranks: accurate to 1e-9 at these ranks.
    slope = EXPONENT - 1
    beyond: float = CORE**slope / slope * ((CORE + 0.5) ** -slope - (words + 0.5) ** -slope)
    return core + beyond


def _tables(h: Header) -> list[tuple[int, int]]:
    """(words, width) of every band with its own table."""
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


@dataclass(frozen=True)
class ModelCost:
    """The cost of one model for `seq` new tokens after `memory` older ones, one sequence."""

    arch: Architecture
    seq: int
    memory: int
    layers: tuple[Cost, ...]
    norms: tuple[int, ...]  # parameters of the norm before each layer
    parts: dict[str, int]  # parameters outside the layers

    @cached_property
    def shared(self) -> dict[str, int]:
        """Parameters shared by several layers, which the model stores once."""
        return {name: count for layer in self.layers for name, count in layer.shared.items()}

    @property
    def decoder_params(self) -> int:
        inside = sum(layer.total_params for layer in self.layers) + sum(self.norms) + sum(self.shared.values())
        return int(inside + self.parts["final norm"])

    @property
    def embedding_params(self) -> int:
        return sum(count for part, count in self.parts.items() if part != "final norm")

    @property
    def total_params(self) -> int:
        return self.decoder_params + self.embedding_params

    @property
    def active_params(self) -> int:
        """Parameters that one token uses."""
        return int(self.total_params - sum(layer.total_params - layer.active_params for layer in self.layers))

    @property
    def params_without_input_embedding(self) -> int:
        """FoX's count: includes the output layer (once, tied or not), but not the input table."""
        return self.total_params - self.parts["token embedding"] + tied_params(self.arch.header)

    @property
    def input_flops(self) -> int:
        """FLOPs of projecting the embeddings to d, weighted by word frequencies."""
        return input_flops(self.arch.header, self.seq)

    @property
    def output_flops(self) -> int:
        """FLOPs of the output layer in training and evaluation: a plain one scores the whole vocabulary at every new
        token, an adaptive softmax its first band and, for targets outside it, theirs."""
        return output_flops(self.arch.header, self.seq)

    @property
    def full_output_flops(self) -> int:
        """FLOPs of scoring the whole vocabulary at every new token, as in generation."""
        return full_output_flops(self.arch.header, self.seq)

    @property
    def flops(self) -> int:
        """Forward FLOPs for the new tokens, their targets scored."""
        return self.input_flops + int(sum(layer.total_flops for layer in self.layers)) + self.output_flops

    @property
    def unmasked_flops(self) -> int:
        """The same without the work that causal masks and windows exclude, as counted for MFU."""
        return self.flops - int(sum(layer.masked for layer in self.layers))

    @property
    def generation_flops(self) -> int:
        """Forward FLOPs for the new tokens in generation: from the state, scoring the whole vocabulary."""
        layers = int(sum(layer.generation_flops for layer in self.layers))
        return self.input_flops + layers + self.full_output_flops

    @property
    def fixed_state(self) -> int:
        return int(sum(layer.fixed_state for layer in self.layers))

    @property
    def conv_state(self) -> int:
        return int(sum(layer.conv_state for layer in self.layers))

    @property
    def kv_cache(self) -> int:
        return int(sum(layer.kv_cache for layer in self.layers))

    def state_bytes(self, bytes_per_number: int = 4) -> int:
        """Memory that generation holds for one sequence at length `memory + seq`."""
        return bytes_per_number * (self.fixed_state + self.conv_state + self.kv_cache)

    def figure(self) -> str:
        """The architecture drawn, an SVG."""
        drawn: str = load_attribute("plait.reporting.diagram:diagram")(self, self.arch.text)
        return drawn

    def _counted(self) -> list[dict[str, Any]]:
        counted = {
            "parameters": self.total_params,
            "of the decoder": self.decoder_params,
            "used per token": self.active_params,
            f"forward FLOPs, {self.seq:,} tokens": self.flops,
            "fixed state, numbers": self.fixed_state,
            "conv state, numbers": self.conv_state,
            "KV cache, numbers": self.kv_cache,
        }
        return [{"cost": name, "": value} for name, value in counted.items()]

    def __str__(self) -> str:
        return f"{self.arch.text}\n{text_table(self._counted())}"

    def _repr_html_(self) -> str:
        return card(self._counted(), headline=self.arch.text, figure=self.figure())


def model_cost(spec: str | Spec | Architecture, *, seq: int = 1024, memory: int = 0) -> ModelCost:
    arch = architecture(spec)
    header = arch.header
    # Equal layers cost the same, and a deep model repeats only a few.
    known = {options: options.cost(header.d, seq, memory) for options in set(arch.layers)}
    return ModelCost(
        arch,
        seq,
        memory,
        layers=tuple(known[options] for options in arch.layers),
        norms=tuple(norm_params(header) if options.prenorm else 0 for options in arch.layers),
        parts=params(header),
    )


def decoder_costs(
    d: Number, layers: Sequence[tuple[MixerOptions, Number]], *, norm: Number, seq: int, memory: int = 0
) -> dict[str, Number]:
    """Many candidates at once: sizes are arrays with one entry per candidate.

    layers   for each depth, options made with `MixerOptions.sizes(...)`, and 1 where a candidate has that layer, 0
             where it is shallower
    norm     parameters of one norm (d or 2 d)
    """
    totals: dict[str, Number] = dict.fromkeys(("params", "active_params", "flops", "fixed_state", "kv_cache"), 0)
    shared: dict[str, Number] = {}
    for options, present in layers:
        cost = options.cost(d, seq, memory)
        extra = norm if options.prenorm else 0
        totals["params"] = totals["params"] + present * (cost.total_params + extra)
        totals["active_params"] = totals["active_params"] + present * (cost.active_params + extra)
        totals["flops"] = totals["flops"] + present * cost.total_flops
        totals["fixed_state"] = totals["fixed_state"] + present * cost.fixed_state
        totals["kv_cache"] = totals["kv_cache"] + present * cost.kv_cache
        for name, count in cost.shared.items():
            # Stored once, however many layers use it: the maximum of the two, written as arithmetic on arrays.
            held, wanted = shared.get(name, 0), present * count
            shared[name] = held + (wanted > held) * (wanted - held)
    for name in ("params", "active_params"):
        totals[name] = totals[name] + sum(shared.values())
    return totals


def total_state(arch: Architecture) -> int:
    """The fixed state of all layers."""
    counted = Counter(arch.layers)
    return int(sum(count * options.cost(arch.header.d, 1).fixed_state for options, count in counted.items()))


def decoder_params(arch: Architecture) -> int:
    """Parameters of the layers, their norms and the final norm."""
    return model_cost(arch, seq=1).decoder_params
