"""What every choice costs, so that a search can be told to spend less: PAR Transformer's search had no such thing.

Letters: L layers, K choices of a layer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from plait.core.errors import UserError
from plait.device.predictor import Predictor
from plait.device.quantities import on_device
from plait.mixers.options import MixerOptions
from plait.spec import Header
from plait.supernet.network import Choices

Floats = NDArray[np.float64]


def cost_shares(
    quantity: str, header: Header, choices: Choices, *, seq: int, memory: int = 0, predictor: Predictor | None = None
) -> Floats:
    """(L, K): each choice's cost as a share of the whole network's when every choice is equally likely.

    flops and state come from the architecture, others from a profile of the device; what is outside of the layers is
    the same for all and left out. Nothing costs nothing.
    """
    distinct = list(dict.fromkeys(option for layer in choices for option in layer if option is not None))
    if not distinct:
        raise UserError("there is nothing but empty layers to choose from.")
    cost = dict(zip(distinct, _costs(quantity, header, distinct, seq, memory, predictor), strict=True))
    found_LK = np.zeros((len(choices), max(len(layer) for layer in choices)))
    for at, layer in enumerate(choices):
        found_LK[at, : len(layer)] = [0.0 if option is None else cost[option] for option in layer]
    whole = sum(found_LK[at, : len(layer)].mean() for at, layer in enumerate(choices))
    if not whole > 0:
        raise UserError(f"penalty={quantity}: no choice has any {quantity}, so it cannot tell them apart.")
    return np.asarray(found_LK / whole)


def _costs(
    quantity: str, header: Header, options: list[MixerOptions], seq: int, memory: int, predictor: Predictor | None
) -> list[float]:
    if quantity in on_device():
        if predictor is None:
            raise UserError(f"penalty={quantity} is predicted from a profile of the device, and none was given.")
        table = predictor.layer_table([(header.d, one) for one in options], header.norm)
        if quantity not in table:
            raise UserError(f"penalty={quantity}: the profile has no {quantity}; make one where it can be read.")
        return [float(each) for each in table[quantity]]
    costs = [one.cost(header.d, seq, memory) for one in options]
    if quantity == "flops":
        return [float(cost.total_flops) for cost in costs]
    return [float(cost.fixed_state + cost.conv_state + cost.kv_cache) for cost in costs]
