"""How an architecture is built, in a few numbers that decide how its learning curve runs; no torch.

They are derived from the cost that every mixer states, so users' mixers have them, too. They describe what copying from
the context needs: a layer that sees the whole context (its KV cache grows with the sequence) after one that sees
neighbouring tokens (a short convolution or token shift). `analysis.curve_library` learns from complete trainings what
each trait is worth at which budget.
"""

from __future__ import annotations

import math

from plait.mixers.options import MixerOptions
from plait.model.architecture import Architecture

TRAITS = (
    "full",  # share of sequence mixers that see the whole context and do not forget
    "forgetting",  # share of those that see all of it through a forget gate
    "near",  # share with a short convolution or shift
    "any full",
    "full after near",  # share of the full ones that have a near one at or before them
    "full first",  # the first sees the whole context, and no neighbours
    "blind",  # share of recurrences without a short convolution or shift
    "state",  # ln(1 + numbers of recurrent state per channel of the model)
    "depth",  # ln of the number of mixers
)
SEQ = 256  # tokens at which a KV cache is asked whether it grows


def traits(architecture: Architecture) -> list[float]:
    """In the order of `TRAITS`."""
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
