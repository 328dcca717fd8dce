"""Scaling laws with error bars: `plait.scale.plan`, `run` and `fit`."""

from __future__ import annotations

from plait.api.scale_fit import fit
from plait.api.scale_plan import plan
from plait.api.scale_run import run

__all__ = ["fit", "plan", "run"]
