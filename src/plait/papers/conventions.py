"""FLOPs as each paper counts them, term by term, so that its printed figures can be reproduced.

The exact count is `plait.model.cost`. These differ from it, and from each other, in what they leave out:

    PAR   (Mandava et al. 2020, Fig. 1 and Table A2)  blocks for 64 new tokens after 640 of memory
    MAD   (Poli et al. 2024, App. C.4)                a whole sequence of length L, embedding included
    FoX   (Lin et al. 2025, Table 6)                  forward per token, from the parameter count
"""

from __future__ import annotations

import math
from typing import Any

from plait.core.errors import UserError
from plait.mixers.options import NOT_SHARED
from plait.model.architecture import Architecture, architecture
from plait.model.cost import model_cost


def par_block_flops(spec: str | Architecture, *, xl_code: bool = False) -> int:
    """FLOPs of the blocks for 64 new tokens after a memory of 640, as Table A2 has them.

    Queries are computed for the new tokens only; Transformer-XL's own code also computes them for the memory and
    discards those (`xl_code`).
    """
    new, memory = 64, 640
    cost = model_cost(spec, seq=new, memory=memory)
    blocks = int(sum(layer.total_flops for layer in cost.layers))
    if xl_code:
        wasted = [layer.params["query"] for layer in cost.layers if "distance" in layer.params]
        blocks += 2 * memory * int(sum(wasted))
    return blocks


def fox_flops_per_token(spec: str | Architecture, *, length: int = 16384) -> float:
    """Table 6: 2N plus, per layer, 2·d·L for attention, 10·d·state for Mamba-2, 5·d·head for HGRN2, 6·d·head for
    DeltaNet. N counts the output layer but not the input embedding.

    The table prints 20·n·d·state for Mamba-2; only with n = 24, its 48 layers taken as 24 pairs, does that give the
    printed 1.65e9."""
    arch = architecture(spec)
    if any(layer.share != NOT_SHARED for layer in arch.layers):
        raise UserError(
            "FoX's Table 6 has no formula for layers that share weights; use the exact count of `plait show`."
        )
    d = arch.header.d
    extra = 0.0
    for layer in arch.layers:
        if layer.kind == "channel":
            continue
        if layer.name in ("attn", "fox"):
            window = getattr(layer, "window", 0)
            extra += 2 * d * (min(window, length) if window else length)
        elif layer.name in _FOX_RECURRENT:
            factor, size = _FOX_RECURRENT[layer.name]
            extra += factor * d * getattr(layer, size)
        else:
            raise UserError(f"FoX's Table 6 has no formula for {layer.name}; use the exact count of `plait show`.")
    return 2 * model_cost(arch).params_without_input_embedding + extra


_FOX_RECURRENT = {"mamba2": (10, "state"), "hgrn2": (5, "head_dim"), "deltanet": (6, "head_dim")}


def mad_terms(spec: str | Architecture, *, length: int) -> dict[str, float]:
    """App. C.4 for a whole sequence: every term by name, summed over the layers that have it.

    The paper's MoE formulas (C.4.7) have no L in the projections; it is put back here, since a sum of terms with and
    without L means nothing. They also charge the up projections to all experts and the down projection to the
    active ones, which is kept as printed.
    """
    arch = architecture(spec)
    d, vocab = arch.header.d, arch.header.vocab
    terms: dict[str, float] = {"embedding": 4 * length * d * vocab}
    for layer in arch.layers:
        if layer.name not in _MAD:
            raise UserError(f"MAD's App. C.4 has no formula for {layer.name}; use the exact count of `plait show`.")
        for term, flops in _MAD[layer.name](layer, d, length).items():
            terms[f"{layer.name}: {term}"] = terms.get(f"{layer.name}: {term}", 0) + flops
    return terms


def mad_flops(spec: str | Architecture, *, length: int) -> float:
    """App. C.4's total for a whole sequence."""
    return sum(mad_terms(spec, length=length).values())


# The calculators of App. C.4. D width, L length, H heads, S state or filter order; o the layer's options.


def _attention(o: Any, D: int, L: int) -> dict[str, float]:
    return {"projections": 6 * L * D**2, "attention": 4 * L**2 * D + 2 * o.heads * L**2, "out layer": 2 * L * D**2}


def _glu(o: Any, D: int, L: int) -> dict[str, float]:
    return {"glu": 6 * L * D * o.inner_width(D)}


def _hyena(o: Any, D: int, L: int) -> dict[str, float]:
    return {
        "projections": 6 * L * D**2,
        "convs on projections": 18 * L * D,
        "featurization": o.state * L * D,
        "convolution and gates": 10 * L * math.log2(L) * D + 4 * L * D,
        "out layer": 2 * L * D**2,
    }


def _multi_head_hyena(o: Any, D: int, L: int) -> dict[str, float]:
    H = o.heads
    return _hyena(o, D, L) | {
        "featurization": o.state * L * H,
        "convolution and gates": 10 * L * math.log2(L) * D**2 / H + 4 * L * D**2 / H,
    }


def _mamba(o: Any, D: int, L: int) -> dict[str, float]:
    E, S, rank = o.expand, o.state, o.rank(D)
    return {
        "projections": 4 * L * D**2 * E,
        "short conv": 6 * L * D * E,
        "featurization": 2 * L * D * E * (rank + 2 * S) + 2 * L * D * E * rank,
        "associative scan": 2 * L * D * E * S,
        "out layer": 2 * L * D**2 * E,
    }


def _moe(o: Any, D: int, L: int) -> dict[str, float]:
    width = o.inner_width(D)
    return {
        "router": L * D * o.experts,
        "up projections": 4 * L * D * width * o.experts,
        "down projection": 2 * L * D * width * o.active,
    }


def _hyena_experts(o: Any, D: int, L: int) -> dict[str, float]:
    width = o.expert_width(D)
    used = width * o.active
    return {
        "router": L * D * o.experts,
        "projections": 6 * L * D**2,
        "convs on projections": 18 * L * D,
        "featurization": o.state * L * used,
        "convolution and gates": 10 * L * math.log2(L) * used + 4 * L * used,
        "out layer": 2 * L * width * D,
    }


_MAD = {
    "attn": _attention,
    "swiglu": _glu,
    "hyena": _hyena,
    "mh-hyena": _multi_head_hyena,
    "mamba": _mamba,
    "moe": _moe,
    "hyena-experts": _hyena_experts,
}
