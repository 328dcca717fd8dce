"""What a whole model costs, from its architecture alone: parameters, FLOPs, state. No torch, microseconds.

`decoder` is what the layers and the final norm hold, `embedding` what grows with the vocabulary or the longest
sequence (input tables, output layer, positions); LiteTransformerSearch's split. Tied tables count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from plait.arch import Architecture, Cost, MixerOptions, architecture
from plait.arch.cost import Number, linear
from plait.spec import Header, Spec


@dataclass(frozen=True)
class ModelCost:
    """The cost of one model for `seq` new tokens after `memory` older ones, one sequence."""

    arch: Architecture
    seq: int
    memory: int
    layers: tuple[Cost, ...]
    norms: tuple[int, ...]  # parameters of the norm in front of each layer
    parts: dict[str, int]  # parameters outside the layers

    @cached_property
    def shared(self) -> dict[str, int]:
        """Parameters that several layers use and the model holds once."""
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
        """Parameters that one token meets."""
        return int(self.total_params - sum(layer.total_params - layer.active_params for layer in self.layers))

    @property
    def params_without_input_embedding(self) -> int:
        """FoX's count: the output layer is in (once, tied or not), the input table is not."""
        header = self.arch.header
        # An auto-encoder's output is its own whatever the header says.
        shares = header.tie and header.kind != "autoencoder"
        tied = sum(words * width for words, width in _clusters(header)) if shares else 0
        return self.total_params - self.parts["token embedding"] + tied

    @property
    def input_flops(self) -> int:
        """Projecting the embeddings to d, for tokens of the first cluster: the most frequent and the dearest."""
        width = _clusters(self.arch.header)[0][1]
        return 2 * self.seq * width * self.arch.header.d if _projected(self.arch.header, width) else 0

    @property
    def output_flops(self) -> int:
        """Scoring the whole vocabulary at every new token."""
        return _output_flops(self.arch.header, self.seq)

    @property
    def flops(self) -> int:
        """Forward FLOPs for the new tokens."""
        return self.input_flops + int(sum(layer.total_flops for layer in self.layers)) + self.output_flops

    @property
    def fixed_state(self) -> int:
        return int(sum(layer.fixed_state for layer in self.layers))

    @property
    def tail_state(self) -> int:
        return int(sum(layer.tail_state for layer in self.layers))

    @property
    def dynamic_state(self) -> int:
        return int(sum(layer.dynamic_state for layer in self.layers))

    def state_bytes(self, bytes_per_number: int = 4) -> int:
        """Memory that generation holds for one sequence at length `memory + seq`."""
        return bytes_per_number * (self.fixed_state + self.tail_state + self.dynamic_state)


def model_cost(given: str | Spec | Architecture, *, seq: int = 1024, memory: int = 0) -> ModelCost:
    arch = architecture(given)
    header = arch.header
    # Equal layers cost the same; a deep model repeats a few.
    known = {options: options.cost(header.d, seq, memory) for options in set(arch.layers)}
    return ModelCost(
        arch,
        seq,
        memory,
        layers=tuple(known[options] for options in arch.layers),
        norms=tuple(norm_params(header) if options.prenorm else 0 for options in arch.layers),
        parts=_outside(header),
    )


def norm_params(header: Header) -> int:
    return header.d if header.norm == "rms" else 2 * header.d


def decoder_costs(
    d: Number, layers: Sequence[tuple[MixerOptions, Number]], *, norm: Number, seq: int, memory: int = 0
) -> dict[str, Number]:
    """Many candidates at once: sizes are arrays with one entry a candidate.

    layers   for each depth, options made with `MixerOptions.sizes(...)`, and 1 where a candidate has that layer, 0
             where it is shallower
    norm     parameters of one norm (d or 2 d)
    """
    totals: dict[str, Number] = dict.fromkeys(("params", "active_params", "flops", "fixed_state", "dynamic_state"), 0)
    shared: dict[str, Number] = {}
    for options, present in layers:
        cost = options.cost(d, seq, memory)
        extra = norm if options.prenorm else 0
        totals["params"] = totals["params"] + present * (cost.total_params + extra)
        totals["active_params"] = totals["active_params"] + present * (cost.active_params + extra)
        totals["flops"] = totals["flops"] + present * cost.total_flops
        totals["fixed_state"] = totals["fixed_state"] + present * cost.fixed_state
        totals["dynamic_state"] = totals["dynamic_state"] + present * cost.dynamic_state
        for name, count in cost.shared.items():
            # Held once, however many layers use it: the larger of the two, as arithmetic on arrays.
            held, wanted = shared.get(name, 0), present * count
            shared[name] = held + (wanted > held) * (wanted - held)
    for name in ("params", "active_params"):
        totals[name] = totals[name] + sum(shared.values())
    return totals


def _outside(h: Header) -> dict[str, int]:
    """Parameters outside the layers, part by part, as `plait.nn.embedding` and `plait.model.heads` build them."""
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


def _clusters(h: Header) -> list[tuple[int, int]]:
    """(words, width) of every cluster that has a table of its own."""
    edges = [0, *(h.cutoffs if h.div > 1 else ()), h.vocab]
    sizes = [last - first for first, last in pairwise(edges)]
    return [(words, max(1, (h.d_embed or h.d) // h.div**i)) for i, words in enumerate(sizes)]


def _projected(h: Header, width: int) -> bool:
    return h.div > 1 or width != h.d


def _embedding_params(h: Header) -> int:
    return sum(words * width + (width * h.d if _projected(h, width) else 0) for words, width in _clusters(h))


def _output_params(h: Header) -> int:
    if h.embed == "plain":
        return (0 if h.tie else h.d * h.vocab) + (h.vocab if h.head_bias else 0)
    clusters = _clusters(h)
    tables = 0 if h.tie else sum(words * width for words, width in clusters)
    projections = sum(width * h.d for _, width in clusters if _projected(h, width))
    entries = len(h.cutoffs) * (clusters[0][1] + 1)
    return tables + projections + h.vocab + entries


def _output_flops(h: Header, seq: int) -> int:
    if h.kind == "autoencoder":
        return 2 * seq * (h.d * h.d + h.d * h.vocab)
    transform = 2 * seq * h.d * h.d if h.kind == "encoder" else 0
    if h.embed == "plain":
        return transform + 2 * seq * h.d * h.vocab
    clusters = _clusters(h)
    scores = sum(words * width for words, width in clusters) + len(h.cutoffs) * clusters[0][1]
    if h.div > 1:
        projections = sum(width * h.d for _, width in clusters)
    else:
        # One projection serves every cluster but is applied anew for each.
        projections = (len(h.cutoffs) + 1) * clusters[0][1] * h.d if _projected(h, clusters[0][1]) else 0
    return transform + 2 * seq * (scores + projections)
