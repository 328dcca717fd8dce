"""What a whole model costs, from its architecture alone: parameters, FLOPs, state. No torch, microseconds.

`decoder` is what the layers and the final norm hold, `embedding` what grows with the vocabulary or the longest
sequence (input tables, output layer, positions); LiteTransformerSearch's split. Tied tables count once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from plait.mixers.cost import Cost, Number
from plait.mixers.options import MixerOptions
from plait.model import vocabulary
from plait.model.architecture import Architecture, architecture
from plait.model.vocabulary import norm_params
from plait.spec import Spec


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
        return self.total_params - self.parts["token embedding"] + vocabulary.tied_params(self.arch.header)

    @property
    def input_flops(self) -> int:
        """Projecting the embeddings to d, over the bands as words occur (`plait.model.vocabulary`)."""
        return vocabulary.input_flops(self.arch.header, self.seq)

    @property
    def output_flops(self) -> int:
        """The output layer as training and evaluation run it: a plain one scores the whole vocabulary at every new
        token, an adaptive softmax its first band and, for targets outside it, theirs."""
        return vocabulary.output_flops(self.arch.header, self.seq)

    @property
    def full_output_flops(self) -> int:
        """Scoring the whole vocabulary at every new token, as generation does."""
        return vocabulary.full_output_flops(self.arch.header, self.seq)

    @property
    def flops(self) -> int:
        """Forward FLOPs for the new tokens, their targets scored."""
        return self.input_flops + int(sum(layer.total_flops for layer in self.layers)) + self.output_flops

    @property
    def generation_flops(self) -> int:
        """Forward FLOPs for the new tokens as generation runs them: from the state, the whole vocabulary scored."""
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
        parts=vocabulary.params(header),
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
            # Held once, however many layers use it: the larger of the two, as arithmetic on arrays.
            held, wanted = shared.get(name, 0), present * count
            shared[name] = held + (wanted > held) * (wanted - held)
    for name in ("params", "active_params"):
        totals[name] = totals[name] + sum(shared.values())
    return totals
