"""What tables of results say: fronts, rankings, matched pairs, savings. Plain arrays in, plain figures out; no
torch."""

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
