"""What a table of results says, whoever made it, and what found architectures have in common: `plait.analyse`."""

from __future__ import annotations

from plait.api.analyse_fronts import dominated, front, front_distance, hypervolume, matched_pairs, savings
from plait.api.analyse_layers import layers
from plait.api.analyse_ranks import aspect, heatmap, lr, ranks
from plait.api.analyse_records import accuracy, difficulty, infer, option

__all__ = [
    "accuracy",
    "aspect",
    "difficulty",
    "dominated",
    "front",
    "front_distance",
    "heatmap",
    "hypervolume",
    "infer",
    "layers",
    "lr",
    "matched_pairs",
    "option",
    "ranks",
    "savings",
]
