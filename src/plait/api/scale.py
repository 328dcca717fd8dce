"""Scaling laws with error bars: `plait.scale.plan`, `run`, `fit`, `probe` and `pitfall`."""

from __future__ import annotations

from plait.api.scale_checks import pitfall, probe
from plait.api.scale_fit import fit
from plait.api.scale_plan import plan
from plait.api.scale_run import run

__all__ = ["fit", "pitfall", "plan", "probe", "run"]
