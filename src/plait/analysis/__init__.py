"""Statistics of results: Pareto fronts, rank correlations, intervals, matched pairs, savings, scaling laws."""

from __future__ import annotations

from plait.core.registry import lazy

HOMES = {
    "hypervolume": "fronts",
    "crowding_distance": "pareto",
    "front_ranks": "pareto",
    "pareto_front": "pareto",
    "judge_placement": "placement",
}
__getattr__ = lazy(__name__, HOMES)
