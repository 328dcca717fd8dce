"""Wide and shallow or narrow and deep: what the shape changes at equal size.

LiteTransformerSearch, App. E and Fig. 14 (Javaheripi et al. 2022, arXiv:2203.02094): at a given count of decoder
parameters the aspect ratio d_model / n_layer, from 8 to 323, changes the perplexity by less than 7 %, the latency by
1.3× and the peak memory by 2.0×.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from plait.analysis.pareto import Ints
from plait.core.errors import UserError


@dataclass(frozen=True)
class SizeGroup:
    """Models of one size. `spread` has the largest value of each metric over its smallest; `models` are places."""

    models: Ints
    size: tuple[float, float]
    aspect: tuple[float, float]
    spread: dict[str, float]


@dataclass(frozen=True)
class AspectStudy:
    groups: list[SizeGroup]
    alone: int  # models that share their size with no other

    def largest(self, metric: str) -> float:
        """The largest spread of a metric at equal size."""
        return max((group.spread[metric] for group in self.groups), default=float("nan"))


def aspect_study(
    width: ArrayLike, depth: ArrayLike, size: ArrayLike, metrics: Mapping[str, ArrayLike], tolerance: float = 0.02
) -> AspectStudy:
    """Groups models of equal size and tells how far apart they are in shape and in each metric.

    From the smallest model on, a group takes all that are at most (1 + tolerance) times its first. A spread therefore
    holds what a difference in size of that much does too.
    """
    width_N, depth_N, size_N = (np.asarray(values, np.float64) for values in (width, depth, size))
    metric_N = {name: np.asarray(values, np.float64) for name, values in metrics.items()}
    for name, values in {"width": width_N, "depth": depth_N, "size": size_N, **metric_N}.items():
        if len(values) != len(size_N) or not (values > 0).all():
            raise UserError(f"the aspect study needs a positive value of '{name}' for every model.")
    aspect_N = width_N / depth_N
    order = np.argsort(size_N, kind="stable")
    groups, alone, start = [], 0, 0
    while start < len(order):
        end = int(np.searchsorted(size_N[order], size_N[order[start]] * (1 + tolerance), side="right"))
        models = order[start:end]
        if len(models) > 1:
            spread = {name: float(values[models].max() / values[models].min()) for name, values in metric_N.items()}
            groups.append(SizeGroup(models, _range(size_N[models]), _range(aspect_N[models]), spread))
        else:
            alone += 1
        start = end
    return AspectStudy(groups, alone)


def _range(values: np.ndarray) -> tuple[float, float]:
    return float(values.min()), float(values.max())
