"""Traits: a few numbers describing an architecture that predict the shape of its learning curve; no torch.

They are derived from the declared cost of every mixer, so users' mixers have them as well. They describe what copying
from the context requires: a layer that sees the whole context (its KV cache grows with the sequence) after one that
sees neighbouring tokens (a short convolution or token shift). `analysis.curve_library` estimates the effect of each
trait at each budget from complete trainings.
"""

from __future__ import annotations

import math

from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture

TRAITS = (
    "full",  # fraction of sequence mixers that see the whole context without a forget gate
    "forgetting",  # fraction that see the whole context through a forget gate
    "near",  # fraction with a short convolution or token shift
    "any full",
    "full after near",  # fraction of the full ones that have a near one at or before them
    "full first",  # whether the first sees the whole context but has no short convolution or shift
    "blind",  # fraction that are recurrences without a short convolution or shift
    "state",  # ln(1 + numbers of recurrent state per channel of the model)
    "depth",  # ln of the number of mixers
)
SEQ = 256  # sequence length at which growth of a KV cache is tested


def traits(architecture: Architecture) -> list[float]:
    """The traits of an architecture, in the order of `TRAITS`."""
    d = architecture.header.d
    layers = [_layer_traits(options, d) for options in architecture.layers if options.kind == "sequence"]
    if not layers:
        return [0.0] * (len(TRAITS) - 1) + [math.log(len(architecture.layers))]
    full = [place for place, (whole, gated, _, _) in enumerate(layers) if whole and not gated]
    near = [place for place, (_, _, close, _) in enumerate(layers) if close]
    after = [place for place in full if near and near[0] <= place]
    first_whole, _, first_close, _ = layers[0]
    return [
        len(full) / len(layers),
        sum(whole and gated for whole, gated, _, _ in layers) / len(layers),
        len(near) / len(layers),
        float(bool(full)),
        len(after) / len(full) if full else 0.0,
        float(first_whole and not first_close),
        sum(blind for *_, blind in layers) / len(layers),
        math.log1p(sum(float(options.cost(d, SEQ).fixed_state) for options in architecture.layers) / d),
        math.log(len(architecture.layers)),
    ]


def _layer_traits(options: MixerOptions, d: int) -> tuple[bool, bool, bool, bool]:
    """(sees the whole context, has a forget gate, sees neighbours, is a recurrence that does not see neighbours)."""
    cost, longer = options.cost(d, SEQ), options.cost(d, 2 * SEQ)
    close = bool(cost.conv_state > 0)
    held = (*cost.params, *(part.rpartition(": ")[2] for part in cost.shared))
    gated = "forget gate" in held
    return (
        bool(longer.kv_cache > cost.kv_cache) or options.reads == "keys",
        gated,
        close,
        bool(cost.fixed_state > 0) and not close,
    )
