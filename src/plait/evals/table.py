"""The table of evaluations: name → where it is defined. Adding one adds one line here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from plait.core.registry import Table

if TYPE_CHECKING:
    from plait.evals.evaluation import Evaluation

EVALUATIONS: Table[type[Evaluation]] = Table(
    "evaluation",
    {
        "perplexity": "plait.evals.perplexity:PerplexityEvaluation",
        "per-token": "plait.evals.per_token:PerTokenEvaluation",
        "extrapolation": "plait.evals.extrapolation:ExtrapolationEvaluation",
        "needle": "plait.evals.needle:NeedleEvaluation",
        "maps": "plait.evals.maps:MapsEvaluation",
    },
    group="plait.evaluations",
)
names = EVALUATIONS.names


def load_evaluation(name: str) -> Evaluation:
    """An evaluation at its default settings; `with_settings` changes them."""
    return EVALUATIONS.load(name)()
