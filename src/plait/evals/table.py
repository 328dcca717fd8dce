"""The table of evaluations: name → where it is defined. Adding one adds one line here."""

from __future__ import annotations

from importlib import import_module

from plait.core.errors import UserError, did_you_mean
from plait.evals.evaluation import Evaluation

EVALUATIONS: dict[str, str] = {
    "perplexity": "plait.evals.perplexity:PerplexityEvaluation",
    "per-token": "plait.evals.per_token:PerTokenEvaluation",
    "extrapolation": "plait.evals.extrapolation:ExtrapolationEvaluation",
    "needle": "plait.evals.needle:NeedleEvaluation",
    "maps": "plait.evals.maps:MapsEvaluation",
}


def names() -> list[str]:
    return list(EVALUATIONS)


def load(name: str) -> Evaluation:
    """An evaluation at its default settings; `with_settings` changes them."""
    if name not in EVALUATIONS:
        near = did_you_mean(name, EVALUATIONS)
        raise UserError(f"unknown evaluation '{name}'.{near} Known: {', '.join(EVALUATIONS)}.")
    module, _, attribute = EVALUATIONS[name].partition(":")
    found: Evaluation = getattr(import_module(module), attribute)()
    return found
