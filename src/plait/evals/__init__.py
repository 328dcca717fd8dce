"""Evaluations of trained models: perplexity, per-token loss, extrapolation, retrieval, downstream tasks."""

from __future__ import annotations

from plait.core.registry import lazy

HOMES = {
    "trend": "per_token",
    "Haystack": "needle",
    "NEEDLES": "needle",
    "attention_map": "maps",
    "QUESTIONS": "ruler",
    "Script": "questions",
    "curve_of": "long_context",
}
__getattr__ = lazy(__name__, HOMES)
