"""Listing, scoring and costing the architectures of a trained supernet.

`likeliest` yields paths (one choice per layer) by decreasing probability. Layers are independent, so every path
except the first follows from a more likely one by taking the next most likely choice in one layer. If that is always
the last layer which is not at its best choice, each path follows from exactly one other, and a heap of successors
yields all paths in order, each once and on demand.

`SupernetLoss` is the validation loss of a path with the supernet's weights, as an objective of a search; nothing is
retrained. It ranks architectures within one supernet; their actual quality requires training from scratch.

`cost_shares` is the cost of every choice, for a penalty on latency, FLOPs or state. The PAR paper's search has none.

Letters: L layers, K choices of a layer.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from plait.algorithms.objectives import Batch, Objective
from plait.core.errors import UserError
from plait.device.predictor import Predictor
from plait.device.quantities import on_device
from plait.mixers.options import MixerOptions
from plait.spec import Header

if TYPE_CHECKING:
    from plait.supernet.network import Choices


Path = tuple[int, ...]


def likeliest(probabilities: Sequence[NDArray[np.float64]]) -> Iterator[tuple[Path, float]]:
    """Paths with their log-probabilities, the most likely first. Choices of probability 0 are left out."""
    order = [np.argsort(-p, kind="stable")[: int((p > 0).sum())] for p in probabilities]
    logs = [np.log(p[best]) for p, best in zip(probabilities, order, strict=True)]
    waiting = [(-float(sum(log[0] for log in logs)), (0,) * len(logs))]
    while waiting:
        cost, ranks = heapq.heappop(waiting)
        yield tuple(int(best[rank]) for best, rank in zip(order, ranks, strict=True)), -cost
        changed = [layer for layer, rank in enumerate(ranks) if rank]
        for layer in range(changed[-1] if changed else 0, len(ranks)):
            rank = ranks[layer]
            if rank + 1 < len(logs[layer]):
                worse = float(logs[layer][rank] - logs[layer][rank + 1])
                heapq.heappush(waiting, (cost + worse, (*ranks[:layer], rank + 1, *ranks[layer + 1 :])))


class SupernetLoss(Objective):
    name = "loss"
    maximise = False
    unit: ClassVar[str] = "nats"
    cheap: ClassVar[bool] = False

    def __init__(self) -> None:
        #: Genes → path of every candidate, since genes do not determine which supernet layers were empty.
        self.paths: dict[bytes, Path] = {}
        self.loss_of: Callable[[Path], float] | None = None

    def remember(self, genes_NG: NDArray[Any], paths: Sequence[Path]) -> None:
        for row_G, path in zip(genes_NG, paths, strict=True):
            self.paths.setdefault(row_G.tobytes(), path)

    def columns(self, batch: Batch) -> dict[str, NDArray[np.float64]]:
        losses = []
        for row_G in batch.genes_NG:
            assert self.loss_of is not None
            losses.append(self.loss_of(self.paths[row_G.tobytes()]))
        return {self.name: np.array(losses, dtype=np.float64)}


Floats = NDArray[np.float64]


def cost_shares(
    quantity: str, header: Header, choices: Choices, *, seq: int, memory: int = 0, predictor: Predictor | None = None
) -> Floats:
    """(L, K): the cost of each choice as a share of the network's expected cost when all choices are equally likely.

    FLOPs and state are computed from the architecture, other quantities come from a profile of the device. The
    embedding and the head cost the same in all architectures and are left out. An empty layer costs nothing.
    """
    distinct = list(dict.fromkeys(option for layer in choices for option in layer if option is not None))
    if not distinct:
        raise UserError("all choices are empty layers.")
    cost = dict(zip(distinct, _costs(quantity, header, distinct, seq, memory, predictor), strict=True))
    found_LK = np.zeros((len(choices), max(len(layer) for layer in choices)))
    for at, layer in enumerate(choices):
        found_LK[at, : len(layer)] = [0.0 if option is None else cost[option] for option in layer]
    whole = sum(found_LK[at, : len(layer)].mean() for at, layer in enumerate(choices))
    if not whole > 0:
        raise UserError(f"penalty={quantity}: no choice has any {quantity}, so the penalty cannot distinguish them.")
    return np.asarray(found_LK / whole)


def _costs(
    quantity: str, header: Header, options: list[MixerOptions], seq: int, memory: int, predictor: Predictor | None
) -> list[float]:
    if quantity in on_device():
        if predictor is None:
            raise UserError(f"penalty={quantity} is predicted from a profile of the device: give one with --profile.")
        table = predictor.layer_table([(header.d, mixer) for mixer in options], header.norm)
        if quantity not in table:
            raise UserError(
                f"penalty={quantity}: the profile has no {quantity}; make one on a machine that can measure it."
            )
        return [float(value) for value in table[quantity]]
    costs = [mixer.cost(header.d, seq, memory) for mixer in options]
    if quantity == "flops":
        return [float(cost.total_flops) for cost in costs]
    return [float(cost.fixed_state + cost.conv_state + cost.kv_cache) for cost in costs]
