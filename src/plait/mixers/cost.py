"""What one layer costs, exactly and without building it.

Every entry is plain arithmetic on sizes, so a size may be a NumPy array: a hundred thousand candidates are costed
by the same formulas as one.

FLOPs count two for each multiply-add of a matrix product or convolution; elementwise work is left out, and causal
attention is counted over the full rectangle, as `torch.utils.flop_counter` does. The papers' own conventions are in
`plait.papers.conventions`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Number = Any  # int, float, or a NumPy array of them

#: The one term of `Cost.flops` that is not a product with a weight: what mixing along the sequence costs. For a
#: recurrence it is the arithmetic of the recurrence itself; a chunked fast path may spend more to run faster.
MIXING = "mixing"

#: The term of depthwise short convolutions, which are not matrix products.
SHORT_CONV = "short conv"


@dataclass(frozen=True)
class Cost:
    """The cost of one layer for `seq` new tokens after `memory` older ones, one sequence.

    params         parameters by part
    active         parameters that one token meets (less than all of them for experts); None: all
    shared         parameters held once for the whole model, by name, however many layers use them
    flops          forward FLOPs for the `seq` new tokens, by term
    masked         those of `flops` that causal masks and windows leave out, which fast kernels do not compute
    cached         those of `flops` that generation saves because its state holds their results: for Transformer-XL's
                   attention the keys and values of its memory, which training computes again
    fixed_state    numbers of recurrent state that do not grow with the sequence (MAD's "fixed state")
    conv_state     the last few inputs that short convolutions and token shifts keep
    kv_cache       numbers of state that grow with the sequence (key-value caches), at length `memory + seq`
    """

    params: Mapping[str, Number]
    flops: Mapping[str, Number]
    masked: Number = 0
    cached: Number = 0
    active: Number | None = None
    shared: Mapping[str, Number] = field(default_factory=dict)
    fixed_state: Number = 0
    conv_state: Number = 0
    kv_cache: Number = 0

    @property
    def total_params(self) -> Number:
        """All parameters of this layer, those it shares with others left out."""
        return sum(self.params.values())

    @property
    def active_params(self) -> Number:
        return self.total_params if self.active is None else self.active

    @property
    def total_flops(self) -> Number:
        return sum(self.flops.values())

    @property
    def unmasked_flops(self) -> Number:
        """What must be computed: of causal attention the pairs of query and key that see each other."""
        return self.total_flops - self.masked

    @property
    def generation_flops(self) -> Number:
        """From the state, as generation runs it."""
        return self.total_flops - self.cached


def seen_pairs(seq: int, memory: int, window: int = 0) -> int:
    """Pairs of a query and a key that it sees: all up to its own place, or the last `window` of those."""
    if not window:
        return seq * memory + seq * (seq + 1) // 2
    growing = min(seq, max(0, window - memory))  # queries that see everything before them
    return growing * memory + growing * (growing + 1) // 2 + (seq - growing) * window


def linear(d_in: Number, d_out: Number, bias: bool = False) -> Number:
    """Parameters of a linear map."""
    return d_in * d_out + (d_out if bias else 0)
